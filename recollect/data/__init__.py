"""What was experienced, laid out for learning."""
