"""Wrong arguments of a constructor raise an error that names the class the user wrote."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def names_the_class(
    init: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], None]:
    """Decorate a constructor that other classes inherit.

    Python names the function that got the arguments: the constructor of the base class.
    """

    @wraps(init)
    def checked(self: S, /, *args: P.args, **options: P.kwargs) -> None:
        try:
            init(self, *args, **options)
        except TypeError:
            wrong = _wrong_arguments(init, self, *args, **options)
            if wrong is None:  # the arguments fit: this is an error about one of them
                raise
            raise TypeError(
                f"{type(self).__name__}(): {wrong}; {how_to_call(type(self))}"
            ) from None

    return checked


def _wrong_arguments(init: Callable[..., None], *args: object, **options: object) -> str | None:
    try:
        inspect.signature(init).bind(*args, **options)
    except TypeError as error:
        return str(error)
    return None


def how_to_call(cls: type[Any]) -> str:
    """How a class is called: its positional arguments, and that options are keywords."""
    parameters = inspect.signature(cls).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
    return f"use {cls.__name__}({', '.join(names)}), with options as keywords"


def refuse_pickling(made: object, instead: str = "create one in each process") -> NoReturn:
    """Say what to do instead of pickling or copying what belongs to one process."""
    raise TypeError(f"cannot pickle or copy a {type(made).__name__}: {instead}")


def forgotten_key() -> TypeError:
    """The error for a request without a key, which would pass by the limits of all keys."""
    return TypeError(
        "a semaphore with key_limit= or share=True needs acquire(key=...);"
        " key=None is for requests that have none"
    )
