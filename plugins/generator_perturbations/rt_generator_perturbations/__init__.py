"""Perturbing what a generator draws, by granularity."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_generator_perturbations.embedded import digits_classifier, digits_classifier_robust, digits_generator
    from rt_generator_perturbations.generators import Generator, GeneratorError
    from rt_generator_perturbations.goals import Breakaway, Goal, TargetClass, TargetRepresentation, UniversalQuantile, Untargeted
    from rt_generator_perturbations.granularity import granularity_curve
    from rt_generator_perturbations.labelling import Item, Sheet, VotesError, count_votes, judge_votes, labelling_sheet, read_votes
    from rt_generator_perturbations.latents import Latents, Normal, PickedLatents
    from rt_generator_perturbations.layers import LayerError, find_layers
    from rt_generator_perturbations.makers import autoencoder_kl, autoencoder_tiny, biggan, decoder, progressive_gan
    from rt_generator_perturbations.miniature import demo
    from rt_generator_perturbations.readings import cumulative, curve_plot, judged_items, picture_grid, ratios, trade_off
    from rt_generator_perturbations.searching import Found, PerturbationModel, Relaxation, perturbation_model, search
    from rt_generator_perturbations.victims import classifier

__all__ = [
    "Breakaway",
    "Found",
    "Generator",
    "GeneratorError",
    "Goal",
    "Item",
    "Latents",
    "LayerError",
    "Normal",
    "PerturbationModel",
    "PickedLatents",
    "Relaxation",
    "Sheet",
    "TargetClass",
    "TargetRepresentation",
    "UniversalQuantile",
    "Untargeted",
    "VotesError",
    "autoencoder_kl",
    "autoencoder_tiny",
    "biggan",
    "classifier",
    "count_votes",
    "cumulative",
    "curve_plot",
    "decoder",
    "demo",
    "digits_classifier",
    "digits_classifier_robust",
    "digits_generator",
    "find_layers",
    "granularity_curve",
    "judge_votes",
    "judged_items",
    "labelling_sheet",
    "perturbation_model",
    "picture_grid",
    "progressive_gan",
    "ratios",
    "read_votes",
    "search",
    "trade_off",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "embedded": ["digits_classifier", "digits_classifier_robust", "digits_generator"],
        "generators": ["Generator", "GeneratorError"],
        "goals": ["Breakaway", "Goal", "TargetClass", "TargetRepresentation", "UniversalQuantile", "Untargeted"],
        "granularity": ["granularity_curve"],
        "labelling": ["Item", "Sheet", "VotesError", "count_votes", "judge_votes", "labelling_sheet", "read_votes"],
        "latents": ["Latents", "Normal", "PickedLatents"],
        "layers": ["LayerError", "find_layers"],
        "makers": ["autoencoder_kl", "autoencoder_tiny", "biggan", "decoder", "progressive_gan"],
        "miniature": ["demo"],
        "readings": ["cumulative", "curve_plot", "judged_items", "picture_grid", "ratios", "trade_off"],
        "searching": ["Found", "PerturbationModel", "Relaxation", "perturbation_model", "search"],
        "victims": ["classifier"],
    },
)
