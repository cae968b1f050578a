"""Chat templates that behave as those of well-known model families do, in our own words."""

from __future__ import annotations

CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen2.5's: a default system message, and nothing is ever taken back."""

DROPS_THOUGHTS = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}"
    "{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's: replies before the last user message lose their thoughts."""

OPENS_A_THOUGHT = DROPS_THOUGHTS.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
)
"""As DeepSeek-R1's: the header of a reply already begins its thought."""

HEADERS = (
    "{% if messages %}<|begin|>{% endif %}"
    "{% for m in messages %}"
    "<|header|>{{ m.role }}<|header_end|>\n\n{{ m.content | trim }}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|header_end|>\n\n{% endif %}"
)
"""As Llama 3's: header tokens, contents trimmed, one begin token at the very front."""

KEEPS_LAST = (
    "{% for m in messages %}{% if loop.index0 >= messages | length - 3 %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Forgets the beginning of long conversations."""

OTHER_END = CHATML.replace("<|im_end|>", "</s>")
"""Ends its turns with a text that is no stop token."""

ONE_TURN = (
    "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
    "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|header_end|>")
