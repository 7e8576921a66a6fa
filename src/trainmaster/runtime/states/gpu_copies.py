"""Copy tensors of a GPU straight into a slot, whose pages CUDA has locked: by way of memory that is not locked it takes ten times as long.

The module is used where a program has tensors on a GPU, so PyTorch is there.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PORTABLE = 1  # cudaHostRegisterPortable: locked for all contexts of the process


def copies_straight(tensor: Any) -> bool:
    """Tell whether `copy` takes a tensor: one on a GPU whose elements lie as they are saved."""
    return bool(
        tensor.is_cuda and tensor.numel() and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    )


def copy(tensor: Any, view: memoryview) -> None:
    """Copy a tensor's elements into memory of their size."""
    torch = sys.modules["torch"]
    torch.frombuffer(view, dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))


class LockedPages:
    """The pages of a mapping, locked while this lives until `release`. Where CUDA cannot lock them, copies are slower, and nothing else."""

    def __init__(self, address: int, size: int, device: Any) -> None:
        torch = sys.modules["torch"]
        self._address, self.device = address, device
        with torch.cuda.device(device):  # another thread's own would get a context on the first GPU
            self.is_locked = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE)) == 0
            if not self.is_locked:
                try:
                    torch.zeros(
                        1, device=device
                    )  # a refusal stays the last error of CUDA, and would be the next kernel's
                except RuntimeError:
                    return

    def release(self) -> None:
        """Unlock the pages, before their mapping goes."""
        if self.is_locked:
            torch = sys.modules["torch"]
            with torch.cuda.device(self.device):
                torch.cuda.cudart().cudaHostUnregister(self._address)
            self.is_locked = False
