"""The plug-ins that come with fedappeal, by kind and name, and how others are found."""

from typing import Any

from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import Registry
from fedappeal.core.policy import Policy
from fedappeal.core.requirement import RequirementKind

STRATEGIES: Registry[Any] = Registry(
    "strategy",
    "fedappeal.strategies",
    "strategies.rounds.strategy:Strategy",
    {
        "maxfl": "strategies.maxfl:MaxFL",
        "fedalign": "strategies.fedalign.strategy:FedALIGN",
        "adagd": "strategies.adagd.strategy:AdaGD",
        "maxfl-adagd": "strategies.maxfl_adagd:MaxFLAdaGD",
        "fedavg": "strategies.fedavg:FedAvg",
        "fedprox": "strategies.fedprox:FedProx",
        "fedadam": "strategies.fedadam:FedAdam",
        "fednova": "strategies.fednova:FedNova",
        "scaffold": "strategies.scaffold:Scaffold",
        "fedau": "strategies.fedau:FedAU",
        "oracle": "strategies.oracle:Oracle",
        "mifa": "strategies.mifa:MIFA",
        "qfedavg": "strategies.qfedavg:QFedAvg",
        "afl": "strategies.afl:AFL",
        "term": "strategies.term:TERM",
        "mwfed": "strategies.mwfed:MWFed",
        "ditto": "strategies.ditto:Ditto",
        "perfedavg": "strategies.perfedavg:PerFedAvg",
        "pfedme": "strategies.pfedme:PFedMe",
    },
)

LOCAL_RULES: Registry[LocalRule] = Registry(
    "local-rule",
    "fedappeal.local_rules",
    LocalRule,
    {
        "sgd": "client.training.sgd:SGD",
        "adamw": "client.training.sgd:AdamW",
        "prox": "strategies.fedprox:FedProx.LocalRule",
        "scaffold": "strategies.scaffold:Scaffold.LocalRule",
        "ditto": "strategies.ditto:Ditto.LocalRule",
        "maml": "strategies.perfedavg:PerFedAvg.LocalRule",
        "moreau": "strategies.pfedme:PFedMe.LocalRule",
        "gradient": "strategies.adagd.strategy:AdaGD.LocalRule",
        "weighted-gradient": "strategies.maxfl_adagd:MaxFLAdaGD.LocalRule",
    },
)

POLICIES: Registry[Policy] = Registry(
    "participation",
    "fedappeal.policies",
    Policy,
    {
        "always": "client.participation.policies:Always",
        "appeal": "client.participation.policies:Appeal",
        "match": "strategies.fedalign.alignment:Match",
        "defect": "strategies.adagd.strategy:Defect",
        "anticipate": "client.participation.policies:Anticipate",
        "inertia": "client.participation.behaviour:Inertia",
        "costly": "client.participation.behaviour:Costly",
        "rest": "client.participation.behaviour:Rest",
        "once": "client.participation.behaviour:Once",
        "bernoulli": "client.participation.availability:Bernoulli",
        "markov": "client.participation.availability:Markov",
        "diurnal": "client.participation.availability:Diurnal",
        "trace": "client.participation.availability:Trace",
        "device": "client.participation.behaviour:Device",
    },
)

REQUIREMENTS: Registry[RequirementKind] = Registry(
    "requirement",
    "fedappeal.requirements",
    RequirementKind,
    {
        "solo": "client.requirement:Solo",
        "fixed": "client.requirement:Fixed",
        "metric": "client.requirement:MetricReached",
    },
)

REGISTRIES: tuple[Registry[Any], ...] = (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS)
"""All kinds of plug-ins but tasks."""
