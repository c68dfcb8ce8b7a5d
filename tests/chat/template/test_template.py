"""Chat templates of every temper, and the same conversation through each of them."""

from __future__ import annotations

from typing import Any

import pytest

from copyahead.chat.messages import single_calls
from copyahead.chat.template.template import CHATML, ChatTemplate
from copyahead.chat.tools.definitions import check_tools
from copyahead.chat.tools.formats import HERMES, JSON, JSON_LIST, LLAMA
from copyahead.errors import RequestError, TemplateError
from copyahead.testing import FakeBackend
from tests.chat.tools.test_tag_call import CODER

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

QWEN = """
{%- if tools %}{{ '[system]tools: ' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- ' write <tool_call>' }}{% endif %}
{%- for m in messages %}
{{ '\\n[' }}{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
{{ '\\n[' }}assistant]{% if thinking %}<think>
{% endif %}
{%- endif %}"""

LLAMA_LIKE = """
{{- bos_token }}
{%- if tools %}[tools]{{ tools | tojson }} as {"name": ..., "parameters": ...}{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{ '\\n[' }}assistant]{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- elif m.role == 'tool' %}
{{ '\\n[' }}ipython]{{ m.content }}
{%- else %}
{{ '\\n[' }}{{ m.role }}]{{ m.content }}
{%- endif %}{% endfor %}"""

STRICT = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('role ' + m.role) }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate!') }}{% endif %}
{{ '\\n[' }}{{ m.role }}]{{ m.content }}
{%- endfor %}"""

SYSTEM_FIRST = """
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}
{{ '\\n[' }}{{ m.role }}]{{ m.content }}
{%- endfor %}"""

TEXT_ARGUMENTS = """
{%- if tools %}{{ tools | tojson }} as [{"name":{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.content is none %}
{%- for call in m.tool_calls %}{"name": "{{ call.function.name }}", "arguments":
{{- ' ' + call.function.arguments }}}
{%- endfor %}
{%- elif m.role != 'assistant' or not m.tool_calls %}
{{ '\\n[' }}{{ m.role }}]{{ m.content }}
{%- endif %}
{%- endfor %}"""

PARTS = """
{%- for m in messages %}
{{ '\\n[' }}{{ m.role }}]
{%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
{%- endfor %}"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(*calls: tuple[str, str, str], content: str | None = None) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ],
    }


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


TOOLS = check_tools([{"type": "function", "function": {"name": "look", "description": "<&é>"}}])
SYSTEM = {"role": "system", "content": "Be brief."}
TWO_CALLS = [
    user("go"),
    calling(("c1", "look", '{"at": 1}'), ("c2", "find", "{}")),
    result("c1", "one"),
    result("c2", "two"),
]


def test_a_plain_conversation() -> None:
    template = ChatTemplate(PLAIN)
    assert template.render([SYSTEM, user("hi")]) == "[system]Be brief.[user]hi"
    assert template.tool_format is HERMES
    assert not template.capabilities.tools
    assert template.end_texts == ()


def test_chatml_where_there_is_no_template() -> None:
    template = ChatTemplate()
    text = template.render([SYSTEM, user("hi")])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert not template.render([user("hi")], None, False).endswith("assistant\n")
    assert template.end_texts == ("<|im_end|>",)


def test_native_tools() -> None:
    template = ChatTemplate(QWEN)
    assert template.tool_format is HERMES
    assert template.capabilities.calls == ("", True)
    assert template.capabilities.parallel_calls
    assert template.capabilities.results
    text = template.render(TWO_CALLS, TOOLS)
    assert '"description": "<&é>"' in text, "no HTML escapes, letters as they are"
    assert '{"name": "look", "arguments": {"at": 1}}' in text
    assert text.endswith("[tool]one\n[tool]two\n[assistant]")


def test_arguments_that_are_no_object_stay_text() -> None:
    text = ChatTemplate(QWEN).render([user("x"), calling(("c", "look", '{"a'))])
    assert '"arguments": "{\\"a"' in text


@pytest.mark.parametrize("source", [QWEN, PLAIN, CODER])
@pytest.mark.parametrize("depth", [500, 970, 3000])
def test_arguments_that_are_nested_too_deeply_stay_text(source: str, depth: int) -> None:
    deep = '{"a": ' + "[" * depth + "]" * depth + "}"
    text = ChatTemplate(source).render([user("go"), calling(("c1", "look", deep))], TOOLS)
    assert "[" * depth in text


def test_one_call_a_message_where_the_template_takes_no_more() -> None:
    template = ChatTemplate(LLAMA_LIKE, bos="<s>")
    assert template.tool_format is LLAMA
    assert not template.capabilities.parallel_calls
    lines = template.render(TWO_CALLS, TOOLS).splitlines()
    assert lines[1:] == [
        "[user]go",
        '[assistant]{"name": "look", "parameters": {"at": 1}}',
        "[ipython]one",
        '[assistant]{"name": "find", "parameters": {}}',
        "[ipython]two",
    ]
    assert lines[0].startswith("<s>[tools]")


def test_calls_are_paired_with_their_results() -> None:
    messages = [*TWO_CALLS, user("and?"), calling(("c1", "look", "{}")), result("c1", "three")]
    roles = [(m["role"], m.get("tool_call_id")) for m in single_calls(messages)]
    assert roles == [
        ("user", None), ("assistant", None), ("tool", "c1"), ("assistant", None), ("tool", "c2"),
        ("user", None), ("assistant", None), ("tool", "c1"),
    ]  # fmt: skip


def test_tools_are_described_where_the_template_cannot() -> None:
    text = ChatTemplate(PLAIN).render([SYSTEM, user("hi")], TOOLS)
    assert text.startswith("[system]Be brief.\n\nYou can call")
    assert '"look"' in text
    assert "<tool_call>" in text
    assert ChatTemplate(PLAIN).render([user("hi")], TOOLS).startswith("[system]You can call")


def test_calls_and_results_are_text_where_the_template_shows_neither() -> None:
    text = ChatTemplate(PLAIN).render(TWO_CALLS)
    assert text == (
        '[user]go[assistant]<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
        "[user]Result of look:\none\n\nResult of find:\ntwo"
    )


def test_a_template_that_knows_only_user_and_assistant_in_turn() -> None:
    template = ChatTemplate(STRICT)
    assert not template.capabilities.system
    messages = [SYSTEM, user("a"), user("b"), *TWO_CALLS[1:], user("c")]
    text = template.render(messages, TOOLS)
    assert text.count("[user]") == 2
    assert text.startswith("\n[user]Be brief.\n\nYou can call")
    assert "a\n\nb" in text
    assert text.endswith("Result of find:\ntwo\n\nc")


# As Mistral's models for code have it: calls and results are not counted.
TURNS = """
{%- set turn = namespace(user=true) %}
{%- if tools %}{{ '[tools]' }}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != turn.user %}{{ raise_exception('alternate!') }}{% endif %}
{%- set turn.user = not turn.user %}
{%- endif %}
{{ '\\n[' }}{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}
{{- '[TOOL_CALLS] [{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}]' }}
{%- endfor %}
{%- endfor %}"""


def test_what_a_user_says_after_a_result_where_calls_are_not_counted() -> None:
    template = ChatTemplate(TURNS)
    assert template.capabilities.results
    call = {**TWO_CALLS[1], "tool_calls": TWO_CALLS[1]["tool_calls"][:1]}
    asked = [SYSTEM, user("a"), call, TWO_CALLS[2]]
    assert template.render(asked, TOOLS).count("[tool]") == 1
    whole = template.render([*asked, user("and?")], TOOLS)
    assert whole == template.render(asked, TOOLS) + "\n\nand?"


def test_two_rules_at_once_are_both_kept() -> None:
    template = ChatTemplate(TURNS)
    call = {**TWO_CALLS[1], "tool_calls": TWO_CALLS[1]["tool_calls"][:1]}
    late = {"role": "system", "content": "Now in French."}
    text = template.render([SYSTEM, user("a"), user("b"), call, TWO_CALLS[2], late, user("c")])
    first, second = text.split("\n[assistant]")
    assert first.endswith("\n[user]a\n\nb")
    assert second.endswith("\n[tool]one\n\nNow in French.\n\nc")


def test_where_nothing_else_helps_calls_and_results_are_turns_of_text() -> None:
    refuses_calls = "{% if messages | length > 3 and messages[2].role == 'tool' %}" + (
        "{{ raise_exception('no results here') }}{% endif %}" + QWEN
    )
    template = ChatTemplate(refuses_calls)
    assert template.capabilities.results
    text = template.render([*TWO_CALLS, user("c")], TOOLS)
    assert "[user]Result of look:" in text


def test_the_last_reason_is_the_one_that_is_told() -> None:
    source = (
        "{% if messages | length > 2 %}{{ raise_exception('first') }}{% endif %}"
        "{% if messages | length == 2 %}{{ raise_exception('last') }}{% endif %}" + PLAIN
    )
    with pytest.raises(TemplateError, match="refuses the conversation: last"):
        ChatTemplate(source).render([user("a"), user("b"), {"role": "assistant", "content": "c"}])


def test_a_later_system_message_where_only_the_first_is_taken() -> None:
    template = ChatTemplate(SYSTEM_FIRST)
    later = {"role": "developer", "content": "Now in French."}
    text = template.render([SYSTEM, later, user("a"), later, user("b")])
    assert text.split("\n") == [
        "", "[system]Be brief.", "", "Now in French.", "[user]a", "", "Now in French.", "", "b",
    ]  # fmt: skip
    assert ChatTemplate(PLAIN).render([user("a"), later]) == "[user]a[system]Now in French."


def test_arguments_as_text_and_no_content_beside_calls() -> None:
    template = ChatTemplate(TEXT_ARGUMENTS)
    assert template.capabilities.calls == (None, False)
    calls = '{"name": "look", "arguments": {"at": 1}}{"name": "find", "arguments": {}}'
    assert calls in template.render(TWO_CALLS)


def test_calls_that_are_no_json_are_asked_for_in_our_own_words() -> None:
    source = """
{%- if tools %}{{ tools | tojson }} as <tool_call><function=name>{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call><function={{ call.function.name }}>
{%- for key, value in call.function.arguments.items() %}<{{ key }}>{{ value }}{% endfor %}
{%- endfor %}{% endfor %}"""
    template = ChatTemplate(source)
    assert not template.capabilities.tools
    text = template.render(TWO_CALLS, TOOLS)
    assert "<function=" not in text
    assert "You can call" in text
    assert '{"name": "find", "arguments": {}}' in text


def test_a_result_knows_what_was_called() -> None:
    source = """
{%- if tools %}{{ tools | tojson }} as <tool_call>{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' and m.name is not defined %}{{ raise_exception('whose?') }}{% endif %}
{{- '[' ~ m.role ~ ' ' ~ (m.name or '') ~ ']' ~ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>{"arguments":
{{- ' ' ~ call.function.arguments | tojson }}, {##}
"name": "{{ call.function.name }}"}</tool_call>{% endfor %}
{%- endfor %}"""
    template = ChatTemplate(source)
    assert template.capabilities.tools
    assert template.capabilities.parallel_calls
    assert template.render(TWO_CALLS).endswith("[tool look]one[tool find]two")
    unknown = template.render([user("a"), {**result("x", "b"), "name": "given"}])
    assert unknown.endswith("[tool given]b")


def test_ids_are_shortened_where_the_template_wants_it() -> None:
    source = """
{%- if tools %}{{ tools | tojson }}{{ '[TOOL_CALLS]' }}{% endif %}
{%- for m in messages %}
{%- for id in (m.tool_calls or []) | map(attribute='id') | list + [m.tool_call_id or '123456789'] %}
{%- if id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}
{%- endfor %}
{%- if m.tool_calls %}[{% for call in m.tool_calls %}{"name": "{{ call.function.name }}", {#-#}
"arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}{% endfor %}]
{%- else %}[{{ m.role }}]{{ m.content }} {{ m.tool_call_id }}{% endif %}
{%- endfor %}"""
    template = ChatTemplate(source)
    assert template.capabilities.short_ids
    assert template.tool_format is JSON_LIST
    messages = [user("go"), calling(("call_long_id", "look", "{}")), result("call_long_id", "one")]
    text = template.render(messages)
    call_id = text.partition('"id": "')[2][:9]
    assert call_id.isalnum()
    assert text.endswith(f"[tool]one {call_id}")


def test_content_in_parts_both_ways() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts}
    assert ChatTemplate(PLAIN).render([message]) == "[user]ab"
    template = ChatTemplate(PARTS)
    assert template.capabilities.parts
    assert template.render([SYSTEM, message]).split() == ["[system]Be", "brief.", "[user]ab"]
    text = template.render(TWO_CALLS)
    assert '"look"' in text
    assert "Result of find:\ntwo" in text


def test_the_forms_of_other_templates() -> None:
    mistral = "{% if tools %}[TOOLS]{{ tools | tojson }} [TOOL_CALLS]{% endif %}" + PLAIN
    assert ChatTemplate(mistral).tool_format is JSON_LIST
    assert ChatTemplate("{{ tools | tojson }}" + PLAIN).tool_format is JSON


def test_what_templates_may_use() -> None:
    source = (
        "{%- for m in messages -%}{% generation %}{{ m.content.strip() }}{% endgeneration %}"
        "{%- if loop.index == 2 %}{% break %}{% endif %}{%- endfor -%}"
        "|{{ strftime_now('%%') }}|{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}"
        "|{{ eos_token }}|{{ flag }}"
    )
    template = ChatTemplate(source, eos="</s>")
    text = template.render([user(" a "), user("b"), user("c")], flag="on")
    assert text == 'ab|%|{\n "a": 2,\n "b": 1\n}|</s>|on'


def test_the_prompt_begins_with_one_first_token() -> None:
    assert ChatTemplate(STRICT, bos="<s>").render([user("a")]) == "<s>\n[user]a"
    assert ChatTemplate(STRICT, bos="<s>", adds_bos=True).render([user("a")]) == "\n[user]a"
    assert ChatTemplate(PLAIN, bos="<s>", adds_bos=True).render([user("a")]) == "[user]a"


def test_clients_cannot_replace_what_is_the_servers() -> None:
    options: dict[str, Any] = {"messages": [], "tools": [1], "bos_token": "x", "thinking": True}
    text = ChatTemplate(QWEN).render([user("a")], None, **options)
    assert text == "\n[user]a\n[assistant]<think>\n"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ raise_exception('never') }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at.all }}",
    ],
)
def test_a_template_that_fails_is_an_error_of_the_request(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render([user("a")])
    assert caught.value.field == "messages"
    assert "chat template refuses" in str(caught.value)


def test_the_reason_that_a_template_gives_is_passed_on() -> None:
    with pytest.raises(TemplateError, match="refuses the conversation: only one"):
        ChatTemplate("{{ raise_exception('only one') }}").render([user("a")])


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["hi"], "messages[0].role"),
        ([user("a"), {"content": "b"}], "messages[1].role"),
        ([{"role": "robot", "content": "b"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": ["a", {"type": "audio"}]}], "messages[0].content[1]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 5}}]}],
            "messages[0].tool_calls",
        ),
    ],
)
def test_what_is_no_message_is_refused_by_name(messages: list[Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(PLAIN).render(messages)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_a_conversation_that_was_given_is_not_changed() -> None:
    messages = [SYSTEM, SYSTEM, *TWO_CALLS]
    before = repr(messages)
    for source in (PLAIN, QWEN, LLAMA_LIKE, STRICT, PARTS, TEXT_ARGUMENTS):
        ChatTemplate(source).render(messages, TOOLS)
        assert repr(messages) == before


def test_the_template_comes_from_the_backend(caplog: pytest.LogCaptureFixture) -> None:
    assert ChatTemplate.from_backend(FakeBackend(chat_template=PLAIN)).source == PLAIN
    assert not caplog.records
    assert ChatTemplate.from_backend(FakeBackend()).source == CHATML
    assert ChatTemplate.from_backend(FakeBackend(chat_template="{% if %}")).source == CHATML
    assert "has a fault" in caplog.records[-1].getMessage()


@pytest.mark.model
def test_the_template_of_a_real_model() -> None:
    from copyahead.backends.llama_cpp.backend import LlamaBackend
    from copyahead.backends.llama_cpp.load import LlamaSettings

    backend = LlamaBackend(None, LlamaSettings(ctx=256))
    try:
        template = ChatTemplate.from_backend(backend)
        text = template.render([SYSTEM, user("hi")], TOOLS)
        tokens = backend.tokenizer.encode(text)
        assert (template.bos, template.eos) == ("<|im_start|>", "<|im_end|>")
    finally:
        backend.close()
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert sum(token == 1 for token in tokens) == 3, "each role begins with the control token"
