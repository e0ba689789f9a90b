"""SHA-256 without OpenSSL, which `hashlib` loads: that takes longer than all that a cached kernel is checked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # CPython 3.12 and later
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:  # another Python, or one built without its own
            from hashlib import sha256

__all__ = ["sha256"]
