"""The aiohttp toolkit: knows no resource but storage state, and no MongoDB."""
