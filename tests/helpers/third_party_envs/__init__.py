"""Third-party Gymnasium envs for tests, by theme; every class is importable from here."""

# ruff: noqa: F401

from helpers.third_party_envs.crashes import (
    ExitsProcess,
    HangsHoldingGil,
    HangsInSecondReset,
    HangsInStep,
    KillsProcess,
    StartsSubprocess,
    StopsProcess,
)
from helpers.third_party_envs.dice import (
    DiceEnv,
)
from helpers.third_party_envs.faults import (
    CallsSysExit,
    DiscreteOutOfRange,
    FaultyEnv,
    InfFinalReward,
    InfObservation,
    InfReward,
    MissingDictKey,
    NanFinalObservation,
    NanObservation,
    NotADict,
    OneFaulty,
    RaisesInConstructor,
    RaisesInFirstReset,
    RaisesInSecondReset,
    RaisesInStep,
    RaisesWhenRecreated,
    RewardIsNone,
    StepReturnsFourValues,
    ValidDict,
    ValidDiscrete,
    WrongFinalObservationShape,
    WrongObservationShape,
    WrongObservationType,
)
from helpers.third_party_envs.infos import (
    CountsPickling,
    CountsResets,
    LargeInfo,
    PicklingCountInfo,
    RecordsClose,
    RecordsSeeds,
    ReportsModules,
    UnpicklableInfo,
)
from helpers.third_party_envs.masks import (
    EmptyMask,
    EmptyMaskInOneDim,
    MaskedDice,
    MaskFromMethod,
    MaskInInfo,
    MaskInObservation,
    MaskMethodRaises,
    MissingInfoMask,
    MissingObservationMask,
    MultiDiscreteActions,
    ShortMask,
    ValidInfoMask,
    ValidMaskMethod,
    ValidObservationMask,
)
from helpers.third_party_envs.spaces import (
    BoxActions,
    DictObservation,
    DiscreteActionsWithStart,
    DiscreteObservation,
    ImageAndVectorGoalEnv,
    ImageGoalEnv,
    ImageObservation,
    MultiBinaryObservation,
    MultiDiscreteActionsWithStart,
    MultiDiscreteObservation,
    ObservationNamedReward,
    ScalarBoxAction,
    UnevenBoxActions,
)
from helpers.third_party_envs.timing import (
    ComputesInStep,
    SleepsInStep,
    WaitsForFile,
)
from helpers.third_party_envs.unsupported_spaces import (
    DictActions,
    DiscreteObservationWithStart,
    IntegerBoxActions,
    MaskedBoxActions,
    MaskOnlyObservation,
    MatrixMultiDiscreteActions,
    MultiBinaryActions,
    MultiDiscreteObservationWithStart,
    NestedDictObservation,
    TextObservation,
    TupleActions,
    TupleObservation,
)
