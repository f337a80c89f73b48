"""A client of freshet without dependencies: reads, updates that are repeated safely, local copies, streams that go on."""
from .client import Client, UpdateResult
from .copy import Copy, Snapshot
from .errors import ApiError, Closed, ConvertFailed, FreshetError, SequenceTooOld, Unavailable, UpdateFailed, UpdatePending
from .streams import Batch, Chat

__all__ = ["ApiError", "Batch", "Chat", "Client", "Closed", "ConvertFailed", "Copy", "FreshetError", "SequenceTooOld", "Snapshot", "Unavailable",
           "UpdateFailed", "UpdatePending", "UpdateResult"]
__version__ = "0.1.0"
