"""Small configurations of families of transformers, as settings of ``--set``."""

DECODER = [
    "hidden_size=64",
    "num_hidden_layers=2",
    "num_attention_heads=4",
    "num_key_value_heads=2",
    "intermediate_size=128",
    "vocab_size=512",
]
_ENCODERS = [
    f"{part}_config.{name}"
    for part in ("text", "vision")
    for name in ("hidden_size=64", "num_hidden_layers=2", "num_attention_heads=4", "intermediate_size=128")
]
_TEXT = [f"text_config.{setting}" for setting in DECODER]
TINY = {
    "qwen2": DECODER,
    "qwen3": [*DECODER, "head_dim=16"],
    "qwen3-moe": [
        *DECODER,
        "head_dim=16",
        "moe_intermediate_size=32",
        "num_experts=8",
        "num_experts_per_tok=2",
    ],
    "mistral": DECODER,
    "mixtral": DECODER,
    "gemma2": [*DECODER, "head_dim=16"],
    "deepseek-v3": [
        *DECODER,
        "num_key_value_heads=4",
        "first_k_dense_replace=1",
        "moe_intermediate_size=32",
        "n_routed_experts=16",
        "num_experts_per_tok=4",
        "n_group=4",
        "topk_group=2",
        "q_lora_rank=32",
        "kv_lora_rank=16",
        "qk_rope_head_dim=8",
        "qk_nope_head_dim=16",
        "v_head_dim=16",
    ],
    "gpt-oss": [*DECODER, "head_dim=16", "num_local_experts=8", "num_experts_per_tok=2"],
    "llama": DECODER,
    "t5": [
        "d_model=64",
        "num_layers=2",
        "num_decoder_layers=2",
        "num_heads=4",
        "d_kv=16",
        "d_ff=128",
        "vocab_size=512",
    ],
    "whisper": [
        "d_model=64",
        "vocab_size=512",
        *(
            f"{part}_{name}"
            for part in ("encoder", "decoder")
            for name in ("layers=2", "attention_heads=4", "ffn_dim=128")
        ),
    ],
    "clip": _ENCODERS,
    "mamba2": [
        "hidden_size=64",
        "num_hidden_layers=2",
        "num_heads=8",
        "head_dim=16",
        "vocab_size=512",
        "n_groups=1",
    ],
    "bert": [
        *DECODER[:3],
        "intermediate_size=128",
        "vocab_size=512",
        "architectures=[BertForSequenceClassification]",
    ],
    "gemma3_text": [*DECODER, "head_dim=16"],
    "gemma3": [
        *_TEXT,
        *_ENCODERS,
        "text_config.head_dim=16",
        "vision_config.image_size=224",
        "vision_config.patch_size=14",
        "mm_tokens_per_image=16",
        "image_token_id=500",
    ],
    "qwen2_5_vl": [
        *_TEXT,
        "text_config.rope_parameters.mrope_section=[2,3,3]",
        "vision_config.hidden_size=64",
        "vision_config.depth=2",
        "vision_config.num_heads=4",
        "vision_config.intermediate_size=128",
        "vision_config.out_hidden_size=64",
        "image_token_id=500",
    ],
}
"""By family; all are captured."""
