"""Typed errors with source locations; standard library only."""

from tessera.errors.diagnostic import (
    CallError,
    CompilerFault,
    DeviceError,
    DiagnosticWarning,
    LanguageError,
    ResourceError,
    TargetError,
    TesseraError,
    TypeMismatchError,
    VerifyError,
)
from tessera.errors.location import Frame, Location, caller_location
from tessera.errors.shown import shown

__all__ = [
    "CallError",
    "CompilerFault",
    "DeviceError",
    "DiagnosticWarning",
    "Frame",
    "LanguageError",
    "Location",
    "ResourceError",
    "TargetError",
    "TesseraError",
    "TypeMismatchError",
    "VerifyError",
    "caller_location",
    "shown",
]
