"""Pure functions: tensors in, tensors out; no configuration, no choice of device, no state."""
