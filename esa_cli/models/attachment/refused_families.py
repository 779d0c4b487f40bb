"""Model families that ESA cannot be attached to, with the reasons. Importing this costs nothing."""

from __future__ import annotations

LIMITS: dict[str, str] = {
    **dict.fromkeys(
        ("falcon", "gptj", "codegen"),
        "its attention is not on the attention interface of transformers",
    ),
    "llama4_text": "queries are scaled by their position, and some layers attend to chunks only",
    "jamba": "transformers forgets its recurrent state where several tokens continue a text",
    "bamba": "transformers counts its positions anew where a text is continued",
    **dict.fromkeys(("zamba", "zamba2"), "layers share attention modules"),
    "minimax": "it needs a cache of its own, in which recurrent states are kept otherwise",
    **dict.fromkeys(
        ("kimi_linear", "bailing_hybrid"),
        "some layers keep latents, the others a recurrent state",
    ),
    **dict.fromkeys(
        (
            "deepseek_v32",
            "glm_moe_dsa",
            "deepseek_v4",
            "hy_v4",
            "axk2",
            "dots3_note_text",
            "mistral_large4_text",
            "glm5_next_text",
            "minimax_m3_vl_text",
            "qwen4_exp_text",
        ),
        "its layers select by an indexer of their own",
    ),
    "mimo_v2_flash": "its values are of another size than its keys",
    **dict.fromkeys(
        ("granite_swa", "granitemoe_swa"), "each layer has a rotary embedding of its own"
    ),
    **dict.fromkeys(
        ("inkling_text", "inkling2_text"),
        "its attention adds a bias that depends on distance to the logits",
    ),
    "diffllama": "its attention is the difference of two",
    "doge": "its attention hides keys by what their values are",
    "jetmoe": "experts make its queries, and keys are repeated behind the cache",
    "hrm_text": "its layers run several times over, each time with keys of their own",
    "zaya": "its queries and keys are made of several tokens each",
    "recurrent_gemma": "no layer attends to all tokens",
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"),
        "it has states and no attention, so that nothing can be selected",
    ),
    **dict.fromkeys(("bloom", "mpt"), "its attention is biased by distance (ALiBi)"),
    "paligemma": "it reads its prompt in both directions",
    **dict.fromkeys(
        ("gpt2", "gpt_bigcode", "gpt_neo", "opt"),
        "it has learned positions in place of rotary ones",
    ),
}
"""Why ESA cannot be attached to a known `model_type`."""
