"""Whether there is an NVIDIA GPU: asked of its driver alone, nothing heavy is imported for it."""

from __future__ import annotations

import ctypes

from edgefuse.errors import DeviceUnavailable

LIBRARY = "libcuda.so.1"
_NO_DEVICE, _INVALID_DEVICE = 100, 101
_NONE = "no CUDA device"


def device_name() -> str:
    """The name of the first GPU that ``CUDA_VISIBLE_DEVICES`` lets this process see.

    Raises:
        DeviceUnavailable: there is no driver or no GPU, or the driver refuses, with its error.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        raise DeviceUnavailable(_NONE) from None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    _ask(driver, "cuInit", 0)
    _ask(driver, "cuDeviceGet", ctypes.byref(device), 0)
    _ask(driver, "cuDeviceGetName", name, len(name), device)
    return name.value.decode(errors="replace")


def why_no_device() -> str:
    """Empty when there is a GPU."""
    try:
        device_name()
    except DeviceUnavailable as error:
        return error.message
    return ""


def _ask(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(driver, function)(*arguments)
    if status in (_NO_DEVICE, _INVALID_DEVICE):
        raise DeviceUnavailable(_NONE)
    if status:
        raise DeviceUnavailable(f"{_NONE}: {function} of the driver gives error {status}")
