"""All attacks by name: importing a module of them adds them."""

from scripts.attack import anonymous, live
from scripts.attack.attacks import ATTACKS

__all__ = ["ATTACKS", "anonymous", "live"]
