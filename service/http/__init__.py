"""The aiohttp toolkit: knows no resource and no MongoDB."""
