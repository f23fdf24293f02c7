"""Percentiles fitted to public data sets: realistic loads for who has none of the files. Data only.

Each table is percentile -> value, to three digits; `laws.Fitted` interpolates, and beyond the outermost
percentiles takes their values: the longest hundredth of most tables is cut off. Times are seconds.

Sources, as measured on extracts of the published files:

- SLURP (Bastianelli et al., EMNLP 2020), 5,007 voice-assistant commands: words.
- BurstGPT (Wang et al., KDD 2025), first 400 rows of BurstGPT_3: 135 sessions that begin 309 s apart on
  average (variation 2.37), tokens, time between turns.
- ShareGPT lengths (from Sarathi-Serve, Agrawal et al., OSDI 2024), 30,731 rows, 6,633 inferred conversations.
- Azure 2023 (Patel et al., Splitwise, ISCA 2024): 19,366 conversation and 8,819 code requests.
- Mooncake (Qin et al., FAST 2025), conversation trace, 12,031 requests.
- StreamingBench, 4,500 questions about videos: words, and what was shown since the last question (4,472).
- text-to-talk (Dingemanse & Liesenfeld, ACL 2022): English turns and rates within a turn.
- AMI (Carletta et al. 2006; RTTMs: Landini et al. 2022), 170 meetings: speech wholly inside another's turn.
"""

from __future__ import annotations

TOKENS_PER_WORD = 1.3
"""English text under common byte-pair tokenizers."""

SPOKEN_WORDS_PER_S = 4.0
"""English, within a turn: median of text-to-talk."""

READ_ALOUD_WORDS_PER_S = 3.05
"""183 words a minute, reading aloud (Brysbaert 2019): how fast a spoken reply goes."""

Table = dict[float, float]


def _nine(*values: float) -> Table:
    """Values at percentiles 1, 5, 10, 25, 50, 75, 90, 95 and 99."""
    return dict(zip((1, 5, 10, 25, 50, 75, 90, 95, 99), values, strict=True))


_TOKENS: dict[str, Table] = {
    "burstgpt_first_tokens": _nine(9.36, 15, 17.4, 24, 49, 116, 458, 852, 1700),
    "burstgpt_new_tokens": _nine(7.95, 13, 14, 21.2, 34, 78, 132, 257, 2330) | {97: 285},
    "burstgpt_output_tokens": _nine(3.99, 11, 16.9, 44.8, 101, 217, 422, 553, 862) | {0: 1, 100: 1000},
    "sharegpt_first_tokens": _nine(7, 12, 17, 31, 90, 476, 3010, 4840, 6920),
    "sharegpt_new_tokens": _nine(2, 3, 6, 12, 25, 56, 144, 295, 763) | {100: 1024},
    "sharegpt_output_tokens": _nine(6, 44, 84, 228, 415, 628, 834, 920, 998) | {0: 2, 100: 1024},
    "azure_conv_input_tokens": _nine(29, 181, 207, 396, 1020, 1190, 2730, 4080, 4140),
    "azure_conv_output_tokens": _nine(16, 41, 54, 85, 129, 395, 424, 451, 601),
    "azure_code_input_tokens": _nine(17, 75, 147, 578, 1470, 2740, 5190, 7300, 7440),
    "azure_code_output_tokens": _nine(6, 6, 7, 9, 13, 24, 55, 90, 251),
    "mooncake_input_tokens": _nine(894, 901, 964, 2310, 6910, 15400, 27400, 39600, 85400),
    "mooncake_output_tokens": _nine(3, 10, 24, 156, 350, 472, 597, 698, 1120),
}

_SLURP_WORDS = _nine(1, 2, 3, 5, 6, 8, 11, 13, 17) | {0: 1, 20: 4, 40: 6, 60: 7, 70: 8, 80: 9, 100: 24}

_OTHERS: dict[str, Table] = {
    "slurp_words": _SLURP_WORDS,
    "streamingbench_words": _nine(5, 5, 6, 9, 11, 14, 17, 20, 25),
    "streamingbench_clip_s": _nine(2, 6, 11, 30, 75, 131, 174, 203, 301),
    "english_turn_words": _nine(1, 1, 1, 3, 7, 12, 18.3, 23, 34) | {40: 5, 60: 8, 85: 16},
    "english_words_per_s": _nine(1.24, 2.05, 2.49, 3.16, 4, 4.88, 5.71, 6.39, 7.84),
    "english_turn_s": _nine(0.2, 0.31, 0.36, 0.56, 1.34, 2.75, 4.36, 5.61, 8.57)
    | {40: 0.97, 60: 1.78, 85: 3.68},
    "english_gap_s": _nine(0, 0, 0, 0, 0.15, 0.48, 0.96, 1.37, 4.13) | {32: 0, 40: 0.02, 60: 0.26, 85: 0.72},
    "ami_gap_s": _nine(0, 0, 0, 0, 0.36, 1.14, 2.89, 5.45, 16.3) | {34: 0, 40: 0.14, 60: 0.61, 85: 1.9},
    "ami_overlap_s": _nine(0.12, 0.18, 0.22, 0.3, 0.46, 1, 1.88, 2.61, 4.59) | {60: 0.59, 85: 1.49},
    "burstgpt_turns": _nine(1, 1, 1, 1, 2, 3, 5, 9.6, 17.6)
    | {44: 1, 45: 2, 65: 2, 66: 3, 78: 3, 80: 4, 97: 12, 100: 24},
    "burstgpt_think_s": _nine(4.58, 11, 17.8, 40, 116, 377, 1370, 2760, 5190),
    "sharegpt_turns": _nine(1, 1, 1, 1, 3, 6, 11, 14, 22) | {28: 1, 29: 2, 44: 2, 60: 4, 100: 40},
    "reading_words_per_s": {0: 2.92, 50: 3.97, 100: 5},
}


def _divided(table: Table, by: float) -> Table:
    return {percentile: value / by for percentile, value in table.items()}


def _name(tokens: str, unit: str) -> str:
    return tokens.removesuffix("tokens") + unit


QUANTILES: dict[str, Table] = {
    **_TOKENS,
    **{_name(name, "words"): _divided(table, TOKENS_PER_WORD) for name, table in _TOKENS.items()},
    **{
        _name(name, "reply_s"): _divided(table, TOKENS_PER_WORD * READ_ALOUD_WORDS_PER_S)
        for name, table in _TOKENS.items()
        if name.endswith("output_tokens")
    },
    **_OTHERS,
}
"""By name. For each `*_tokens` there is `*_words` (1.3 tokens a word), for replies `*_reply_s`, read aloud.

`english_gap_s` and `ami_gap_s` are from the end of a turn to the next speaker's start, overlaps counted as 0.
`reading_words_per_s` spans what most adults read, 175 to 300 words a minute (Brysbaert 2019)."""
