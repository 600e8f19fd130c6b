"""Pong on tensors: the ALE's game to the bit, N at a time, with physics that can be changed."""
