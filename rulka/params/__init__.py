"""Typed `params.yaml`: one frozen class for each section, no defaults, unknown keys are errors.

A default in code would be a hyperparameter that DVC cannot see, so there is none here. Import from here; the modules
hold a group of sections each, `sections` all of them together, `reader` the way in. `writer`, the way back, is imported
by its own name: no stage writes parameters.
"""

from __future__ import annotations

from rulka.params.algorithm import ALGORITHM_NAMES, AlgorithmParams, ByPartParams
from rulka.params.base import (
    MOST_START_MPS,
    Algorithm,
    AngleDeg,
    Backend,
    Count,
    LateralM,
    MapChoice,
    NotNegative,
    RaceSeconds,
    Section,
    Share,
    StartSpeedMps,
)
from rulka.params.iqn import IqnParams, MarginParams, MunchausenParams, PrioritisedParams, ResetParams
from rulka.params.networks import IqnNetworkParams, NetworkParams, PartsParams, TransferParams
from rulka.params.ppo import PpoParams
from rulka.params.problems import problems_of
from rulka.params.races import (
    CampaignTracksParams,
    CaptureParams,
    DriverParams,
    EvaluateParams,
    GeneratedTracksParams,
    LineStartParams,
    MainTrackParams,
    RaceEndParams,
    RaceParams,
    RaceStartParams,
    SelectParams,
    TrackParams,
    TracksParams,
)
from rulka.params.reader import PARAMS_FILE, ParamsError, checked_params, read_params, read_sections, reference_params
from rulka.params.sections import Params, keys_of
from rulka.params.simulator import (
    MAX_PIXELS,
    MIN_PIXELS,
    ActionParams,
    CameraParams,
    FramesAs,
    ObservationParams,
    Part,
    PhysicsParams,
    SimulatorParams,
    Ticks,
)
from rulka.params.supervised import (
    AutoencoderParams,
    CloneParams,
    FitParams,
    LabelKind,
    ObjectiveParams,
    PretrainParams,
    SimclrParams,
    VaeParams,
    VicregParams,
    ViewsParams,
)
from rulka.params.training import EngineeredRewardParams, RandomisationParams, RewardParams, TrainParams

__all__ = [
    "ALGORITHM_NAMES",
    "MAX_PIXELS",
    "MIN_PIXELS",
    "MOST_START_MPS",
    "PARAMS_FILE",
    "ActionParams",
    "Algorithm",
    "AlgorithmParams",
    "AngleDeg",
    "AutoencoderParams",
    "Backend",
    "ByPartParams",
    "CameraParams",
    "CampaignTracksParams",
    "CaptureParams",
    "CloneParams",
    "Count",
    "DriverParams",
    "EngineeredRewardParams",
    "EvaluateParams",
    "FitParams",
    "FramesAs",
    "GeneratedTracksParams",
    "IqnNetworkParams",
    "IqnParams",
    "LabelKind",
    "LateralM",
    "LineStartParams",
    "MainTrackParams",
    "MapChoice",
    "MarginParams",
    "MunchausenParams",
    "NetworkParams",
    "NotNegative",
    "ObjectiveParams",
    "ObservationParams",
    "Params",
    "ParamsError",
    "Part",
    "PartsParams",
    "PhysicsParams",
    "PpoParams",
    "PretrainParams",
    "PrioritisedParams",
    "RaceEndParams",
    "RaceParams",
    "RaceSeconds",
    "RaceStartParams",
    "RandomisationParams",
    "ResetParams",
    "RewardParams",
    "Section",
    "SelectParams",
    "Share",
    "SimclrParams",
    "SimulatorParams",
    "StartSpeedMps",
    "Ticks",
    "TrackParams",
    "TracksParams",
    "TrainParams",
    "TransferParams",
    "VaeParams",
    "VicregParams",
    "ViewsParams",
    "checked_params",
    "keys_of",
    "problems_of",
    "read_params",
    "read_sections",
    "reference_params",
]
