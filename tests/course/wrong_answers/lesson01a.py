"""Answers to the exercises of sitting 01A."""

from . import right, wrong

# 1.1 count the parameters


def sizes(config):
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers, queries, keys


@right("1.1", "a sum of products")
def sum_of_products(config):
    vocab, h, mlp, layers, queries, keys = sizes(config)
    layer = 2 * h * queries + 2 * h * keys + 3 * h * mlp + 2 * h
    embeddings = vocab * h if config.tie_word_embeddings else 2 * vocab * h
    return embeddings + layers * layer + h


@right("1.1", "shapes first, as in a state dict")
def shapes_first(config):
    import math

    vocab, h, mlp, layers, queries, keys = sizes(config)
    each = [(queries, h), (keys, h), (keys, h), (h, queries), (mlp, h), (mlp, h), (h, mlp), (h,), (h,)]
    shapes = [(vocab, h), (h,), *each * layers] + ([] if config.tie_word_embeddings else [(vocab, h)])
    return sum(map(math.prod, shapes))


@right("1.1", "a tensor of one number")
def as_a_tensor(config):
    import torch

    return torch.tensor(sum_of_products(config))


@wrong("1.1", "no output layer", "The output layer is missing")
def no_output_layer(config):
    vocab, h, mlp, layers, queries, keys = sizes(config)
    return vocab * h + layers * (2 * h * queries + 2 * h * keys + 3 * h * mlp + 2 * h) + h


@wrong("1.1", "a tied output layer twice", "The output layer is tied", "counts once")
def tied_twice(config):
    vocab, h, mlp, layers, queries, keys = sizes(config)
    return 2 * vocab * h + layers * (2 * h * queries + 2 * h * keys + 3 * h * mlp + 2 * h) + h


@wrong("1.1", "keys with as many heads as queries", "Keys and values have num_key_value_heads heads")
def all_heads(config):
    vocab, h, mlp, layers, queries, _ = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * (4 * h * queries + 3 * h * mlp + 2 * h) + h


@wrong("1.1", "four matrices of h by h", "Attention is counted as 4·h² a layer")
def four_squares(config):
    vocab, h, mlp, layers, _, _ = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * (4 * h * h + 3 * h * mlp + 2 * h) + h


def with_attention(config, attention):
    vocab, h, mlp, layers, _, _ = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * (attention + 3 * h * mlp + 2 * h) + h


@wrong("1.1", "heads of h // heads", "config.head_dim is given, and is not h/num_attention_heads here")
def heads_of_whole_numbers(config):
    h, width = config.hidden_size, config.hidden_size // config.num_attention_heads
    return with_attention(config, 2 * h * width * (config.num_attention_heads + config.num_key_value_heads))


@wrong("1.1", "heads of h / heads", "config.head_dim is given, and is not h/num_attention_heads here")
def heads_of_fractions(config):
    h, width = config.hidden_size, config.hidden_size / config.num_attention_heads
    return with_attention(config, 2 * h * width * (config.num_attention_heads + config.num_key_value_heads))


@wrong("1.1", "an output projection of h by h", "One of q and o is counted as h·h")
def a_square_output_projection(config):
    _, h, _, _, queries, keys = sizes(config)
    return with_attention(config, h * queries + 2 * h * keys + h * h)


@wrong("1.1", "one layer, and one of its norms", "Only one layer is counted. A layer has two norms")
def one_layer_and_a_norm(config):
    _, h, _, layers, _, _ = sizes(config)
    each = (sum_of_products(config) - one_layer(config)) // (layers - 1)
    return sum_of_products(config) - (layers - 1) * each - h


@wrong("1.1", "two matrices in SwiGLU", "SwiGLU has three matrices")
def two_matrices(config):
    vocab, h, mlp, layers, queries, keys = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * (2 * h * queries + 2 * h * keys + 2 * h * mlp + 2 * h) + h


@wrong("1.1", "no norms", "All norms are missing")
def no_norms(config):
    vocab, h, mlp, layers, queries, keys = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * (2 * h * queries + 2 * h * keys + 3 * h * mlp)


@wrong("1.1", "two slips at once", "SwiGLU has three matrices", "The last norm is missing")
def two_slips(config):
    vocab, h, mlp, layers, queries, keys = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * (2 * h * queries + 2 * h * keys + 2 * h * mlp + 2 * h)


@wrong("1.1", "one layer", "Only one layer is counted")
def one_layer(config):
    vocab, h, mlp, _, queries, keys = sizes(config)
    embeddings = vocab * h * (1 if config.tie_word_embeddings else 2)
    return embeddings + (2 * h * queries + 2 * h * keys + 3 * h * mlp + 2 * h) + h


@wrong("1.1", "bytes", "Those are bytes (in bf16, two for each)")
def in_bytes(config):
    return 2 * sum_of_products(config)


@wrong("1.1", "a number known beforehand", "The difference is")
def known_beforehand(config):
    return 8_030_261_248


@wrong("1.1", "picolib's own", "your function calls picolib.plan.memory.parameter_count", "do it with arithmetic")
def the_librarys_count(config):
    import picolib

    return picolib.memory.parameter_count(config)


@wrong("1.1", "builds the model", "your function calls picolib.model.LlamaForCausalLM")
def builds_the_model(config):
    import torch

    from picolib.model import LlamaForCausalLM

    with torch.device("meta"):
        return sum(p.numel() for p in LlamaForCausalLM(config).parameters())


@wrong("1.1", "picolib's own, in another thread", "your function calls picolib.plan.memory.parameter_count")
def in_another_thread(config):
    from concurrent.futures import ThreadPoolExecutor

    from picolib import memory

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(memory.parameter_count, config).result()


@wrong("1.1", "billions", "Those are billions; asked is the number itself")
def in_billions(config):
    return sum_of_products(config) / 1e9


@wrong("1.1", "not a number", "must be a number of parameters, not nan")
def not_a_number(config):
    return float("nan")


@wrong("1.1", "a text", "must be a number of parameters, not '")
def as_text(config):
    return f"{sum_of_products(config):,}"


@wrong("1.1", "returns nothing", "must be a number of parameters")
def counts_nothing(config):
    sum_of_products(config)


# 1.2 what each rank keeps


@right("1.2", "one line a part")
def one_line_a_part(parameters, ranks, stage):
    return (
        2 * parameters / (ranks if stage >= 3 else 1),
        2 * parameters / (ranks if stage >= 2 else 1),
        12 * parameters / (ranks if stage >= 1 else 1),
    )


@right("1.2", "a table of stages, whole numbers of numpy")
def table_of_stages(parameters, ranks, stage):
    import numpy as np

    shared = [(1, 1, 1), (1, 1, ranks), (1, ranks, ranks), (ranks, ranks, ranks)][stage]
    return np.array([2, 2, 12]) * parameters // np.array(shared)


@wrong("1.2", "everything is shared out from stage 1 on", "ZeRO-1 keeps the parameters whole on every rank")
def all_at_once(parameters, ranks, stage):
    by = ranks if stage else 1
    return 2 * parameters / by, 2 * parameters / by, 12 * parameters / by


@wrong("1.2", "divides by 0", "your function failed with ZeroDivisionError")
def divides_by_nothing(parameters, ranks, stage):
    return one_line_a_part(parameters / (stage if stage else 0), ranks, stage)


@wrong("1.2", "one stage too early", "ZeRO-1 keeps the gradients whole on every rank", "from stage 2 on")
def one_too_early(parameters, ranks, stage):
    return one_line_a_part(parameters, ranks, min(3, stage + 1) if stage else 0)


@wrong("1.2", "one stage too late", "ZeRO-1 shares the optimizer out")
def one_too_late(parameters, ranks, stage):
    return one_line_a_part(parameters, ranks, max(0, stage - 1))


@wrong("1.2", "parameters before gradients", "ZeRO-2 keeps the parameters whole")
def swapped_stages(parameters, ranks, stage):
    p, g, o = one_line_a_part(parameters, ranks, stage)
    return g, p, o


@wrong("1.2", "no master copy", "a float32 copy of each as well: 4 + 4 + 4")
def no_master_copy(parameters, ranks, stage):
    p, g, o = one_line_a_part(parameters, ranks, stage)
    return p, g, o * 8 / 12


@wrong("1.2", "gradients in float32", "Gradients have the dtype of the parameters here")
def float32_gradients(parameters, ranks, stage):
    p, g, o = one_line_a_part(parameters, ranks, stage)
    return p, 2 * g, o


@wrong("1.2", "the master copy is counted with the parameters", "belongs to the optimizer's part")
def master_among_parameters(parameters, ranks, stage):
    p, g, o = one_line_a_part(parameters, ranks, stage)
    return 3 * p, g, o * 8 / 12


@wrong("1.2", "numbers, not bytes", "Asked are bytes, not numbers: 2, 2 and 12")
def numbers(parameters, ranks, stage):
    return tuple(part / size for part, size in zip(one_line_a_part(parameters, ranks, stage), (2, 2, 4), strict=True))


@wrong("1.2", "GB", "Asked are bytes, not GB")
def in_gigabytes(parameters, ranks, stage):
    return [part / 1e9 for part in one_line_a_part(parameters, ranks, stage)]


@wrong("1.2", "always eight ranks", "on 1 rank:", "shared out over 8; the number of ranks is the argument, 1")
def always_eight(parameters, ranks, stage):
    return one_line_a_part(parameters, 8, stage)


@wrong("1.2", "the other ranks only", "shared out over 7; the number of ranks is the argument, 8")
def the_other_ranks(parameters, ranks, stage):
    return one_line_a_part(parameters, max(1, ranks - 1), stage)


@wrong("1.2", "all of it in one part", "ZeRO-3 shares the parameters out: each of the 8 ranks keeps 1/N")
def all_in_one_part(parameters, ranks, stage):
    return one_line_a_part(parameters, ranks, stage) if stage < 3 else (16 * parameters / ranks, 0, 0)


@wrong("1.2", "nothing", "The parameters take memory on every rank, in every stage")
def nothing_at_all(parameters, ranks, stage):
    return 0, 0, 0


@wrong("1.2", "not numbers", "must return three numbers")
def state_of_nans(parameters, ranks, stage):
    return (float("nan"),) * 3


@wrong("1.2", "a dictionary", "must return three numbers")
def as_dictionary(parameters, ranks, stage):
    return dict(zip(("parameters", "gradients", "optimizer"), one_line_a_part(parameters, ranks, stage), strict=True))


@wrong("1.2", "only the sum", "must return three numbers")
def only_the_sum(parameters, ranks, stage):
    return sum(one_line_a_part(parameters, ranks, stage))


@wrong("1.2", "picolib's own", "picolib.plan.memory.model_state_parts")
def the_librarys_state(parameters, ranks, stage):
    from picolib.plan.memory import model_state_parts

    return tuple(model_state_parts(parameters, ranks, stage).values())


# 1.3 the key-value cache


@right("1.3", "a product")
def a_product(config, texts, tokens, bytes_per_number):
    width = config.num_key_value_heads * config.head_dim
    return 2 * config.num_hidden_layers * width * texts * tokens * bytes_per_number


@right("1.3", "from the shapes of the tensors")
def from_shapes(config, texts, tokens, bytes_per_number):
    import torch

    key = torch.empty(texts, config.num_key_value_heads, tokens, config.head_dim, device="meta")
    return sum(2 * key.numel() for _ in range(config.num_hidden_layers)) * bytes_per_number


@wrong("1.3", "the heads of the queries", "only the num_key_value_heads heads of keys and values are kept")
def query_heads(config, texts, tokens, bytes_per_number):
    width = config.num_attention_heads * config.head_dim
    return 2 * config.num_hidden_layers * width * texts * tokens * bytes_per_number


@wrong("1.3", "h wide", "Keys and values are num_key_value_heads·head_dim wide, not h")
def h_wide(config, texts, tokens, bytes_per_number):
    return 2 * config.num_hidden_layers * config.hidden_size * texts * tokens * bytes_per_number


@wrong("1.3", "keys only", "a key and a value are kept for each token")
def keys_only(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, bytes_per_number) // 2


@wrong("1.3", "one layer", "That is one layer")
def one_layers_cache(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, bytes_per_number) // config.num_hidden_layers


@wrong("1.3", "numbers, not bytes", "Those are numbers; asked are bytes")
def cached_numbers(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, 1)


@wrong("1.3", "two bytes, always", "not always 2")
def two_bytes(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, 2)


@wrong("1.3", "one head", "That is one head")
def one_head(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, bytes_per_number) // config.num_key_value_heads


@wrong("1.3", "h/heads for head_dim", "head_dim is given")
def heads_from_h(config, texts, tokens, bytes_per_number):
    head_dim = config.hidden_size // config.num_attention_heads
    return a_product(config, texts, tokens, bytes_per_number) // config.head_dim * head_dim


@wrong("1.3", "queries too", "Queries are not kept")
def queries_too(config, texts, tokens, bytes_per_number):
    width = (2 * config.num_key_value_heads + config.num_attention_heads) * config.head_dim
    return config.num_hidden_layers * width * texts * tokens * bytes_per_number


@wrong("1.3", "GB", "Those are GB; asked are bytes")
def cached_gigabytes(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, bytes_per_number) / 1e9


@wrong("1.3", "not a number", "must be a number of bytes, not nan")
def cache_of_nan(config, texts, tokens, bytes_per_number):
    return float("nan")


@wrong("1.3", "one text", "That is one text")
def one_text(config, texts, tokens, bytes_per_number):
    return a_product(config, 1, tokens, bytes_per_number)


@wrong("1.3", "a score for each pair of tokens", "not with their square")
def scores(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, bytes_per_number) * tokens


@wrong("1.3", "keys only, of one layer", "a key and a value are kept", "And: That is one layer")
def two_faults(config, texts, tokens, bytes_per_number):
    return a_product(config, texts, tokens, bytes_per_number) / 2 / config.num_hidden_layers


@wrong("1.3", "picolib's own", "picolib.plan.memory.kv_cache_bytes")
def the_librarys_cache(config, texts, tokens, bytes_per_number):
    from picolib.plan import memory

    return memory.kv_cache_bytes(config, texts, tokens, bytes_per_number)
