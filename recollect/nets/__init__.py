"""Networks: encoder -> core -> heads, put together in ``agent.py``."""
