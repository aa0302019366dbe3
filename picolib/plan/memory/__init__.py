"""What fills a device, as formulas and as measured. All results are bytes unless the name says otherwise.

Notation as everywhere in the course: N ranks, Ψ parameters, b micro-batch, s sequence, h hidden, L layers, t the
size of a tensor-parallel group. 1 GB is 10^9 bytes, as in papers and on data sheets; 1 GiB is 2^30.
"""

from picolib.plan.memory.activations import (
    activation_bytes,
    activation_bytes_per_layer,
    gpt_activation_bytes_per_layer,
    logits_bytes,
)
from picolib.plan.memory.inference import inference_bytes, kv_cache_bytes, kv_cache_bytes_per_token
from picolib.plan.memory.measured import Measured, measure
from picolib.plan.memory.parameters import active_parameter_count, layer_parameter_count, parameter_count
from picolib.plan.memory.presets import PRESETS
from picolib.plan.memory.state import (
    ADAM_MIXED,
    BytesPerParameter,
    model_state_bytes,
    model_state_parts,
    training_bytes,
    unsharded_layer_bytes,
)

__all__ = [
    "ADAM_MIXED",
    "PRESETS",
    "BytesPerParameter",
    "Measured",
    "activation_bytes",
    "activation_bytes_per_layer",
    "active_parameter_count",
    "gpt_activation_bytes_per_layer",
    "inference_bytes",
    "kv_cache_bytes",
    "kv_cache_bytes_per_token",
    "layer_parameter_count",
    "logits_bytes",
    "measure",
    "model_state_bytes",
    "model_state_parts",
    "parameter_count",
    "training_bytes",
    "unsharded_layer_bytes",
]
