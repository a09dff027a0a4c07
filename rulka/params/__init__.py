"""Typed `params.yaml`: one frozen class for each section, with a default and a meaning for every key.

A key that the file leaves out has its default; one that is not known is an error. Import from here; the modules hold
a group of sections each, `sections` all of them together, `reader` reads the file. `writer` changes it, and is imported
by its own name: no stage writes parameters.
"""

from __future__ import annotations

from rulka.params.algorithm import ALGORITHM_NAMES, AlgorithmParams, ByPartParams
from rulka.params.base import (
    MOST_START_MPS,
    Algorithm,
    AngleDeg,
    Backend,
    CloneShape,
    Count,
    LateralM,
    MapChoice,
    NotNegative,
    Positive,
    RaceSeconds,
    Section,
    Several,
    Share,
    StartSpeedMps,
)
from rulka.params.clone import CloneParams, DaggerParams, LabelKind
from rulka.params.dpo import DemonstrationPairsParams, DpoParams, FilePairsParams, GivenPairsParams, OnlinePairsParams
from rulka.params.evaluate import EvaluateParams
from rulka.params.grpo import GrpoParams
from rulka.params.impala import (
    CorrectionParams,
    EpsilonParams,
    ImpalaParams,
    NoCorrectionParams,
    OneStepParams,
    VtraceParams,
)
from rulka.params.iqn import IqnParams, MarginParams, MunchausenParams, PrioritisedParams
from rulka.params.networks import IqnNetworkParams, NetworkParams, PartsParams, TransferParams
from rulka.params.observation import MAX_PIXELS, MIN_PIXELS, ActionParams, FramesAs, ObservationParams, Part, Ticks
from rulka.params.policy_gradient import CriticParams, EpochsParams, PolicyGradientParams, PolicyParams
from rulka.params.ppo import PpoParams
from rulka.params.pql import C51Params, MeanReturnParams, PqlParams
from rulka.params.pretrain import (
    AutoencoderParams,
    FitParams,
    ObjectiveParams,
    PretrainParams,
    SimclrParams,
    VaeParams,
    VicregParams,
    ViewsParams,
)
from rulka.params.problems import problems_of
from rulka.params.races import (
    CampaignTracksParams,
    CaptureParams,
    DriverParams,
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
from rulka.params.reader import (
    PARAMS_FILE,
    ParamsError,
    checked_params,
    read_params,
    read_sections,
    reference_params,
    resolved,
    that_comes_with_the_package,
)
from rulka.params.sections import Params, keys_of
from rulka.params.simulator import CameraParams, PhysicsParams, SimulatorParams
from rulka.params.training import (
    EngineeredRewardParams,
    RandomisationParams,
    RewardParams,
    RuntimeParams,
    TrainingRaceParams,
    TrainParams,
)
