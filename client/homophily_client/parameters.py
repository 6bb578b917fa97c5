"""Converts options to messages, and parameters in messages to the core's names. The server checks their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from homophily_client._pb import job_pb2
from homophily_client._pb import model_pb2 as pb
from homophily_client.options import FIELD_NAMES
from homophily_client.words import number, word

_CORE_NAMES = {field: name for name, field in FIELD_NAMES.items()}

Filled = TypeVar("Filled", bound=Message)
#: An options dataclass, or a dictionary of the same names.
Options = Any


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """A search for the hyper-parameters that are not given.

    Parameters
    ----------
    trials : int, optional
        The largest number of trials; 60, and 36 for IRR.
    seconds : float, optional
        Start no more trials after this time.
    seed : int, optional
        Seed of random choices; the same seed gives the same result.
    spread : bool, optional
        Run the trials as jobs of their own, on all workers.
    vary : sequence of str, optional
        The parameters to search, such as ``["n_neighbors", "lambda1"]``; if not given, all but repulsion and power.
    warm_start : bool, optional
        Start each ERR trial from the solution for the next smaller lambda2: faster, slightly less exact.
    """

    trials: int | None = None
    seconds: float | None = None
    seed: int | None = None
    spread: bool | None = None
    vary: tuple[str, ...] | list[str] | None = None
    warm_start: bool | None = None


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How a job is run.

    Parameters
    ----------
    request_id : str, optional
        A key that you choose: the same key with the same request is the same job. Generated if not given.
    wait : float, optional
        Seconds, at most 60, that the call may wait for the job to end.
    priority : int, optional
        −100 to 100; of a project's jobs, those of higher priority start first.
    time_limit : float, optional
        Seconds that an attempt may take.
    max_attempts : int, optional
        How often the job may be started when its worker dies.
    """

    request_id: str | None = None
    wait: float | None = None
    priority: int | None = None
    time_limit: float | None = None
    max_attempts: int | None = None


def to_message(kind: type[Filled], options: Options, argument: str) -> Filled:
    """Return the message for some options; None means that nothing is given.

    >>> to_message(pb.GraphParameters, {"n_neighbors": 5, "metric": "cosine", "sigma_x": None}, "graph").n_neighbors
    5
    """
    message = kind()
    for name, value in _given(options, argument).items():
        descriptor = kind.DESCRIPTOR.fields_by_name.get(FIELD_NAMES.get(name, name))
        if descriptor is None or name in _CORE_NAMES:
            known = ", ".join(_CORE_NAMES.get(field, field) for field in kind.DESCRIPTOR.fields_by_name)
            raise ValueError(f"{argument} has no option {name!r}. Known options: {known}.")
        if descriptor.enum_type is not None:
            setattr(message, descriptor.name, number(descriptor.enum_type, value, name))
        elif isinstance(getattr(message, descriptor.name), pb.ClassPrior):
            _set_class_prior(getattr(message, descriptor.name), value)
        elif isinstance(getattr(message, descriptor.name), Duration):
            getattr(message, descriptor.name).CopyFrom(duration(value))
        elif descriptor.is_repeated:
            getattr(message, descriptor.name).extend(value)
        else:
            # protobuf does not accept NumPy's numbers.
            setattr(message, descriptor.name, value.item() if isinstance(value, np.generic) else value)
    return message


def _given(options: Options, argument: str) -> dict[str, Any]:
    if options is None:
        return {}
    if is_dataclass(options) and not isinstance(options, type):
        options = asdict(options)
    if not isinstance(options, Mapping):
        raise TypeError(f"{argument} must be options or a dictionary. Got {type(options).__name__} instead.")
    return {name: value for name, value in options.items() if value is not None}


def _set_class_prior(message: pb.ClassPrior, value: Any) -> None:
    if not isinstance(value, str):
        shares = np.asarray(value, dtype=np.float64)
        if shares.ndim == 2 and shares.shape[1] == 2:
            message.bounds.lows.extend(shares[:, 0].tolist())
            message.bounds.highs.extend(shares[:, 1].tolist())
        else:
            message.shares.values.extend(shares.ravel().tolist())
    elif value in ("estimate", "balanced"):
        setattr(message, value, True)
    else:
        raise ValueError(
            "class_prior must be 'estimate', 'balanced', one share or one pair (low, high) per class, or None. "
            f"Got {value!r} instead."
        )


def prior_value(message: pb.ClassPrior) -> str | list[float] | list[tuple[float, float]] | None:
    """Return a class prior as a word, shares, or pairs of bounds; None if it says nothing."""
    source = message.WhichOneof("source")
    if source == "shares":
        return list(message.shares.values)
    if source == "bounds":
        return list(zip(message.bounds.lows, message.bounds.highs, strict=False))
    return "estimate" if message.estimate else "balanced" if message.balanced else None


def search_message(search: bool | int | Options) -> pb.SearchParameters | None:
    """Return a search: True for its defaults, a number of trials, or options; None and False for no search.

    >>> search_message({"trials": 20, "spread": True}).trials
    20
    """
    if search is None or search is False:
        return None
    if search is True:
        return pb.SearchParameters()
    if isinstance(search, int):
        search = {"trials": search}
    return to_message(pb.SearchParameters, search, "search")


def job_message(options: Options, new_id: str) -> job_pb2.JobOptions:
    """Return the options of a job. They always have a request_id, so that sending it again is safe."""
    message = to_message(job_pb2.JobOptions, options, "job")
    message.request_id = message.request_id or new_id
    return message


def registration_message(register: str | None, aliases: Iterable[str]) -> pb.Registration | None:
    """Return how a model is registered; None if it is not."""
    names = [aliases] if isinstance(aliases, str) else list(aliases)
    if register is None:
        if names:
            raise ValueError(f"aliases must come with register, the name they are for. Got {names} alone instead.")
        return None
    return pb.Registration(name=register, aliases=names)


def duration(seconds: float) -> Duration:
    """Return a duration."""
    length = Duration()
    length.FromNanoseconds(int(seconds * 1e9))
    return length


def to_dict(message: Message) -> dict[str, Any]:
    """Return the parameters that a message sets, by the core's names."""
    parameters: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        name = _CORE_NAMES.get(descriptor.name, descriptor.name)
        if descriptor.enum_type is not None:
            parameters[name] = word(descriptor.enum_type, value)
        elif isinstance(value, pb.ClassPrior):
            parameters[name] = prior_value(value)
        else:
            parameters[name] = value
    return parameters
