"""External drivers: functions, models and ONNX files, from observations to decisions, each of which is validated."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from pydantic import TypeAdapter

from rulka.contracts.actions import ActionTable, Choices
from rulka.contracts.artifacts import NetworkInputContract
from rulka.contracts.observation import num_floats, unseen_floats
from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError
from rulka.simulator.race_settings import read_settings
from rulka.stages.folders import import_from_here

Act = Callable[[dict[str, NDArray]], Any]
"""Maps the observation of N cars, `image` [N, L, H, W] uint8 and `floats` [N, F] float32, to their N decisions: indices
[N], chunks of them [N, K], or steer, gas and brake [N, 3]."""
ONNX = ".onnx"
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ExternalPolicy:
    """A function that drives.

    Attributes:
        label: its display name.
        algorithm: the same, in place of an agent's algorithm.
        settings: settings of the races that it is made for.
        observation: its observation.
        actions: its action table.
    """

    def __init__(self, act: Act, keywords: Mapping[str, Any] | None = None, label: str = "") -> None:
        """Wraps a function.

        Args:
            act: the function, or a model with a method `predict` as those of stable-baselines3 have. Its optional
                attribute `environment` holds the keywords of `rulka/Race-v0` with which it was made, such as
                {"action_repeat": 2}.
            keywords: further keywords, which take precedence.
            label: its name; defaults to that of the function.

        Raises:
            UserError: if it is not callable, or a keyword is unknown or out of range.
        """
        self.label = self.algorithm = label or str(getattr(act, "__name__", type(act).__name__))
        own = getattr(act, "environment", {})
        if callable(getattr(act, "predict", None)):
            act = partial(_predicted, act)
        if not callable(act):
            raise UserError(f"{self.label} cannot drive: {act!r:.80} is no function")
        if not isinstance(own, Mapping):
            raise UserError(f"{self.label}.environment holds keywords of its environment by name, got {own!r:.80}")
        self.settings = read_settings(None, {**own, **(keywords or {})})
        self.observation, self.actions = self.settings.image, self.settings.table
        self._act = act
        self._is_unseen = unseen_floats(self.observation, num_floats(self.actions.actions_per_decision))

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray:
        """Decides for N cars; see `rulka.evaluation.race.Policy`."""
        floats = floats.copy()
        floats[:, self._is_unseen] = 0.0
        try:
            decided = np.asarray(self._act({"image": image.copy(), "floats": floats}))
        except Exception as error:  # third-party code may raise anything
            raise UserError(f"{self.label} failed as it drove: {type(error).__name__}: {error}") from error
        space, shape = self.actions.space, (len(floats), *self.actions.decision_shape)
        is_index = isinstance(space, Choices)
        if decided.shape != shape or decided.dtype.kind not in ("iu" if is_index else "f"):
            wanted = f"{'whole numbers' if is_index else 'floating-point numbers'} of shape {shape}"
            message = f"{self.label} gave {decided.dtype} of shape {decided.shape}, expected {wanted}"
            raise UserError(message, hint="It decides for all cars at once, a row for each.")
        low, high = (0, space.num_choices - 1) if is_index else (np.array(space.low), np.array(space.high))
        is_right = (low <= decided) & (decided <= high)  # False for NaN too
        if not is_right.all():
            raise UserError(f"{self.label} decided {decided[~is_right][0]:g}, expected {low} to {high}")
        return decided.astype(np.int64 if is_index else np.float32)


def _predicted(model: Any, seen: Any) -> Any:
    """Returns the decision of a model of stable-baselines3, whose `predict` also returns a state."""
    return model.predict(seen, deterministic=True)[0]


def is_guest(name: str | Path) -> bool:
    """True if a name has the form MODULE:NAME, or is that of an ONNX file."""
    return _NAME.fullmatch(str(name)) is not None or str(name).lower().endswith(ONNX)


def find_guest(name: str, keywords: Mapping[str, Any] | None = None) -> ExternalPolicy:
    """Imports a function or model by name, whose module may be in the current folder; or opens an ONNX file.

    Args:
        name: see `is_guest`.
        keywords: see `ExternalPolicy`.

    Raises:
        UserError: if there is no such function or file, or a keyword is unknown or out of range.
    """
    if name.lower().endswith(ONNX):
        act, own = _session(Path(name))
        return ExternalPolicy(act, {**own, **(keywords or {})}, Path(name).stem)
    module, _, function = name.partition(":")
    import_from_here()
    try:
        act = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        message = f"there is no {name}: {error}"
        raise UserError(message, hint="Write MODULE:FUNCTION; the module lies here or is installed.") from error
    return ExternalPolicy(act, keywords, name)


def _session(path: Path) -> tuple[Act, dict[str, Any]]:
    """Opens an ONNX file whose inputs are `image`, `floats` or both, and whose first output is the decision.

    Returns its function, and the keywords of its environment. Its metadata tell these as `rulka agents export` writes
    them, or as JSON under `keywords`.
    """
    try:
        session = InferenceSession(check_readable(path).read_bytes(), providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a class for each kind of damage
        raise UserError(f"{path} cannot drive: it is no readable ONNX file: {error!s:.200}") from error
    names, meta = [each.name for each in session.get_inputs()], session.get_modelmeta().custom_metadata_map

    def act(seen: dict[str, NDArray]) -> Any:
        return session.run(None, {name: seen[name] for name in names})[0]

    try:
        told = {name: json.loads(meta[name]) for name in ("keywords", "observation", "actions") if name in meta}
        keywords = dict(told.get("keywords", {}))
        if "actions" in told:
            table, seen = TypeAdapter(ActionTable).validate_python(told["actions"]), told["observation"]
            keywords |= {"actions_per_decision": table.parts, "continuous": table.is_analog}
            keywords |= {"ticks_per_action": table.decision_ticks, "action_repeat": table.repeats}
            keywords["observation"] = NetworkInputContract(**seen).params().model_dump()
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot drive: its metadata do not tell an environment: {error!r:.80}") from error
    return act, keywords
