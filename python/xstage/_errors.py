"""Errors of the package. Each message names the argument, its value and what is allowed."""


class Error(RuntimeError):
    """Any failure of xstage; `code` is that of xstage.h (1 for a failed check)."""

    code = 1


class BadInput(Error, ValueError):
    """An argument that is not allowed."""

    code = 2


class Unsupported(Error):
    """No GPU, or this GPU, driver or pair of GPUs cannot do it."""

    code = 4


class WaitTimeout(Error):
    """A rank waited longer than its limit; the message says who waited for whom.

    What the calls since then returned is not valid. `recover()` on every rank, or a new layer,
    goes on.
    """

    code = 5


_OF_CODE = {2: BadInput, 3: Unsupported, 4: Unsupported, 5: WaitTimeout}


def raise_for(code, message):
    error = _OF_CODE.get(code, Error)(message)
    error.code = code
    raise error


def bad_input(what, field, value, allowed):
    """The error as the library words it."""
    return BadInput(f"{what} ({field} = {value}; allowed: {allowed})")
