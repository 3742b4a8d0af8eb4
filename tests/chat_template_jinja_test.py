"""The chat template interpreter against Python's jinja2, set up as the libraries do that define what templates mean."""

import json
import os
import random
import subprocess
import sys
import time
import unittest

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1_790_000_000

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "  Grüße, 東京! 😀 \"quoted\" 'single'  ", "name": "Ann"},
    {"role": "assistant", "content": "<think>hm\nwell</think>\n\nFine.", "tool_calls": [
        {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None, True]}}}]},
    {"role": "tool", "content": "3.5", "tool_call_id": "c1"},
    {"role": "user", "content": ""},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds\nnumbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array"}}, "required": ["a"]}}}]

# Whole templates, written for this test in the manner of real ones.
TEMPLATES = [
    "{%- for message in messages %}\n    {%- if message.role == 'user' %}\n<|user|>{{ message.content | trim }}\n"
    "    {%- elif message['role'] != 'tool' %}\n<|{{ message.role }}|>{{ message.content }}{% endif %}\n{%- endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}\n",
    "{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n"
    "  {%- set index = (messages|length - 1) - loop.index0 %}\n  {%- if ns.multi_step and message.role == 'user' and "
    "not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}\n    {%- set ns.multi_step = false %}"
    "\n    {%- set ns.last = index %}\n  {%- endif %}\n{%- endfor %}\n{{ ns.last }}/{{ ns.multi_step }}",
    "{% macro render(tool, depth=0) %}{{ '  ' * depth }}{{ tool.function.name }}({% for key, value in "
    "tool.function.parameters.properties.items() %}{{ key }}: {{ value.type }}{{ ', ' if not loop.last }}{% endfor %}){% endmacro %}"
    "{% if tools %}{% for tool in tools %}{{ render(tool, depth=2) }}|{{ tool | tojson }}|{{ tool | tojson(indent=2) }}{% endfor %}{% endif %}",
    "{% for message in messages if message.role in ['user', 'assistant'] %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} "
    "{{ loop.last }} {{ loop.revindex }} {{ loop.previtem.role if loop.previtem is defined else '-' }} {{ loop.nextitem.role "
    "if loop.nextitem is defined }} {{ loop.cycle('a', 'b') }}\n{% else %}none{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}{% for call in m.tool_calls %}{%- set f = "
    "call.function %}<call>{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments if f.arguments is string else f.arguments | tojson }}}"
    "</call>{% endfor %}{% endif %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}|"
    "{{ m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] }}{% endif %}{% endfor %}",
    "{% set x %}a{% if true %}b{% endif %}{% endset %}{{ x }}{% set y = [1, 2] + [3] %}{{ y }} {{ y | join('-') }} {{ (1, 'a') }}",
    "{% raw %}{{ not run }}{% endraw %}{# gone #}\n  {# and its line #}\n  {% if true %}\n  kept\n  {% endif %}\nend\n",
    "a\n  {%+ if true %} b {%+ endif %}\n {%- if true -%} \n c \n {%- endif +%}\n d",
    "{% filter upper %}shout {{ messages[0].role }}{% endfilter %}{% call(x) outer() %}{{ x }}{% endcall %}"
    if False else "{% filter upper %}shout {{ messages[0].role }}{% endfilter %}",
    "{% macro outer() %}<{{ caller('in') }}>{% endmacro %}{% call(x) outer() %}{{ x }}!{% endcall %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ strftime_now('%d %b %Y') }} {{ bos_token }}{{ eos_token }} {{ enable_thinking is defined and enable_thinking is false }}",
    "{% if not messages[9] is defined %}no{% endif %}{{ messages[9] | default('none') }}{{ undefined_thing }}{{ none_thing is none }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | map('trim') | list | length }}"
    "{{ messages | rejectattr('name', 'defined') | map(attribute='role') | unique | sort | join(',') }}",
    "{%- for k, v in messages[2].tool_calls[0].function.arguments|dictsort -%}{{ k }}={{ v }};{%- endfor -%}",
    "{{ raise_exception('refused') }}",
    "{% generation %}kept{% endgeneration %}" if False else "{{ 'kept' }}",
]

# Expressions: all of these as {{ expression }}.
EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3 % 2 ** 2 ;; -7 // 2 ;; -7 % 3 ;; 7 / 2 ;; 2 ** 10 ;; 1.5 + 1 ;; 1e3 ;; 10 / 5 ;; -3 ;; 3.0 ;; 1e20
0.1 + 0.2 ;; 1e-7 ;; 1 == 1.0 ;; 'a' < 'b' <= 'b' ;; 1 < 2 < 2 ;; not true and false or true ;; none == none
[1] == [1] ;; {'a': 1} == {'a': 1} ;; 1 in [1, 2] ;; 'b' in 'abc' ;; 'z' not in 'abc' ;; 'a' in {'a': 1} ;; true + 1
'a' ~ 1 ~ none ~ true ~ 1.0 ;; 'ab' * 3 ;; [0] * 2 ;; 'x' 'y' ;; 'hello'[1] ;; 'hello'[-1] ;; 'hello'[1:3]
'hello'[::-1] ;; 'hello'[::2] ;; 'hello'[-3:] ;; 'hello'[:-2] ;; [1, 2, 3][1:] ;; [1, 2, 3][::-1] ;; 'hello'[4:1:-1]
'héllo'[1] ;; 'héllo' | length ;; '東京'[0] ;; [1, 2, 3][5] is defined ;; [1,2,3][-4:2] ;; 'abc'[3:1]
'a,b,,c'.split(',') ;; ' a  b '.split() ;; 'a b c'.split(' ', 1) ;; 'a b c'.rsplit(' ', 1) ;; ' a b c '.split(none, 1)
' a b c '.rsplit(none, 1) ;; 'abc'.upper() ;; 'ABC'.lower() ;; 'hello world'.title() ;; 'hELLO'.capitalize()
' x '.strip() ~ '|' ;; 'xxaxx'.strip('x') ;; 'xxa'.lstrip('x') ;; 'abcabc'.replace('b', 'X')
'abcabc'.replace('b', 'X', 1) ;; 'abc'.replace('', '-') ;; 'abc'.startswith('ab') ;; 'abc'.endswith(('x', 'c'))
'abc'.find('c') ;; 'abc'.find('z') ;; 'banana'.count('an') ;; 'banana'.rfind('an') ;; 'banana'.index('n')
'-'.join(['a', 'b']) ;; 'a\nb\r\nc'.splitlines() ;; '12'.isdigit() ;; 'ab1'.isalnum() ;; 'ab'.isalpha()
''.isdigit() ;; ' '.isspace() ;; 'prefix-x'.removeprefix('prefix-') ;; 'x.py'.removesuffix('.py')
{'a': 1, 'b': [2, {'c': none}]} ;; {'a': 1}.get('b', 'd') ;; {'a': 1}.get('b') ;; {'a': 1, 'b': 2}.items() | list
{'a': 1}.keys() | list ;; {'b': 2}.values() | list ;; {'a': 1}['a'] ;; {'a': 1}.a ;; {'a': {'b': 5}}.a.b
{'items': 3}['items'] ;; messages[0]['role'] ;; messages[0].role ;; messages | length ;; messages[1].name
'a' if true else 'b' ;; 'a' if false ;; ('a' if false else 'b') ;; 1 if none else 2 if false else 3 ;; (1, 2)[0]
(1,) ;; () ;; [] ;; {} ;; [[]] ;; ['a\'b', "c"] ;; 3 is odd ;; 4 is even ;; 9 is divisibleby 3 ;; 9 is divisibleby(2)
'a' is string ;; 1 is number ;; true is number ;; 1 is integer ;; 1.0 is float ;; true is boolean ;; x is defined
x is undefined ;; none is none ;; [] is sequence ;; {} is mapping ;; 'a' is iterable ;; 1 is iterable ;; 1 is not none
x is not defined ;; true is true ;; 1 is eq 1 ;; 1 is ne 2 ;; 1 is lt 2 ;; 3 is ge(3) ;; 'a' is in ['a']
'a' is in 'abc' ;; 'ABC' is upper ;; 'abc' is lower ;; not 1 is none ;; range is callable ;; [3, 1, 2] | sort
['b', 'A', 'c'] | sort ;; ['b', 'A'] | sort(case_sensitive=true) ;; [1, 2, 3] | sort(reverse=true)
[1, 1, 2] | unique | list ;; [1, 2] | sum ;; [1, 5, 2] | max ;; [4, 1] | min ;; [1, 2, 3] | first ;; [1, 2, 3] | last
'abc' | first ;; [1, 2, 3] | reverse | list ;; 'abc' | reverse ;; [] | first is defined
[1, none, 2] | select | list ;; [1, 2, 3, 4] | select('even') | list ;; [1, 2, 3] | reject('odd') | list
[1, 2, 3] | select('gt', 1) | list ;; ['a', 'b'] | map('upper') | join ;; '3' | int ;; '3.7' | float ;; 'x' | int
'x' | int(7) ;; 3.99 | int ;; true | int ;; 2.5 | round ;; 2.567 | round(2) ;; 2.1 | round(0, 'ceil') ;; -5 | abs
'12' | int + 1 ;; '<a href="x">' | escape ;; 'a b c' | wordcount ;; 'hi' | indent ;; 'a\nb\n\nc' | indent(2)
'a\nb' | indent(2, true) ;; 'abc' | title ;; 'ab' | string ;; 5 | string ~ 'x' ;; x | default('d')
'' | default('d') ;; '' | default('d', true) ;; none | default('d') ;; none | default('d', true) ;; x | d('e')
(x | default([])) | length ;; {'b': 1, 'a': 2} | tojson ;; [1, 2.0, none, true, 'é"<>&\n'] | tojson
{'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) ;; 'é' | tojson ;; 5 | tojson ;; {'b': 1, 'a': 2} | dictsort
{'b': 1, 'a': 2} | dictsort(by='value') ;; {'a': 1} | items | list ;; [{'n': 2}, {'n': 1}] | sort(attribute='n')
[{'n': 1}] | map(attribute='n') | list ;; [{'n': {'m': 1}}] | map(attribute='n.m') | list
[{'n': 1}, {}] | map(attribute='n', default=0) | list ;; [{'n': 1}, {'n': 2}] | selectattr('n', 'gt', 1) | list
[{'n': 1}] | sum(attribute='n') ;; range(3) | list ;; range(1, 10, 3) | list ;; range(5, 0, -2) | list
namespace(a=1).a ;; dict(a=1, b='x') ;; messages[1].content | trim ;; messages[1].content | length ;; -2 ** 2
(-2) ** 2 ;; 2 ** -1 ;; 'a' + 'b' ~ 'c' + 'd' ;; 1 ~ 2 + 3 ;; 7 // 2.0 ;; 7.5 % 2 ;; true and 'x' ;; '' or 'y'
not '' ;; 1 > 0 and 2 > 1 ;; 'a' == "a"
"""


def expressions() -> list[str]:
    return [part for line in EXPRESSIONS.strip().splitlines() for part in line.split(" ;; ")]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda text: time.strftime(text, time.gmtime(NOW))
    return env


def request(template: str, **changes) -> dict:
    return {"template": template, "messages": MESSAGES, "tools": TOOLS, "kwargs": {"none_thing": None, "enable_thinking": False},
            "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "unix_seconds": NOW, **changes}


def expected(case: dict) -> dict:
    try:
        variables = {key: case[key] for key in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")}
        return {"text": environment().from_string(case["template"]).render(**variables, **case["kwargs"])}
    except Exception as error:  # noqa: BLE001: whatever jinja2 refuses, we must refuse too.
        return {"error": repr(error)}


def render_all(cases: list[dict]) -> list[dict]:
    program = os.path.join(os.environ["WARPLINE_BIN"], "..", "tests", "chat_template_render")
    result = subprocess.run([program], input="".join(json.dumps(case) + "\n" for case in cases), capture_output=True,
                            encoding="utf-8", timeout=120, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def random_template(rng: random.Random, pool: list[str]) -> str:
    """Blocks, white space and markers put together at random."""
    def piece(depth: int) -> str:
        open_mark, close_mark = rng.choice(["{%", "{%-", "{%+"]), rng.choice(["%}", "-%}"])
        space = lambda: rng.choice(["", " ", "\n", "  \n ", "\t", "x", " y\n"])
        kind = rng.randrange(6 if depth < 3 else 3)
        if kind == 0:
            return space() + rng.choice(["{{", "{{-"]) + " " + rng.choice(pool) + " " + rng.choice(["}}", "-}}"])
        if kind == 1:
            return space() + "text" + space()
        if kind == 2:
            return space() + rng.choice(["{#", "{#-"]) + " note " + rng.choice(["#}", "-#}"]) + space()
        inner = "".join(piece(depth + 1) for _ in range(rng.randrange(1, 4)))
        if kind == 3:
            return f"{space()}{open_mark} if {rng.choice(pool)} {close_mark}{inner}{open_mark} else {close_mark}{space()}{open_mark} endif {close_mark}"
        if kind == 4:
            return f"{space()}{open_mark} for item in messages {close_mark}{inner}{{{{ item.role }}}}{open_mark} endfor {close_mark}"
        return f"{open_mark} set v {close_mark}{inner}{open_mark} endset {close_mark}{{{{ v }}}}{space()}"

    return "".join(piece(0) for _ in range(rng.randrange(1, 6)))


class JinjaTest(unittest.TestCase):
    def compare(self, cases: list[dict]):
        answers = render_all(cases)
        self.assertEqual(len(answers), len(cases))
        for case, answer in zip(cases, answers):
            wanted = expected(case)
            with self.subTest(template=case["template"]):
                self.assertEqual("error" in answer, "error" in wanted, f"{answer} instead of {wanted}")
                if "text" in wanted:
                    self.assertEqual(answer["text"], wanted["text"])

    def test_templates(self):
        self.compare([request(template) for template in TEMPLATES])
        self.compare([request(template, tools=None, messages=MESSAGES[:2], add_generation_prompt=False) for template in TEMPLATES])

    def test_expressions(self):
        found = expressions()
        self.assertGreater(len(found), 200)
        self.compare([request("{{ " + expression + " }}") for expression in found])

    def test_random_templates(self):
        rng = random.Random(5)
        pool = ["messages[0].role", "1", "''", "none", "'a b'", "messages | length", "true", "x", "loop.index", "tools[0].type"]
        self.compare([request(random_template(rng, pool)) for _ in range(2000)])

    @unittest.skipUnless(len(sys.argv) > 1 and os.path.isdir(sys.argv[-1]), "no folder of templates was named on the command line")
    def test_folder(self):
        names = sorted(os.listdir(sys.argv[-1]))
        self.compare([request(open(os.path.join(sys.argv[-1], name), encoding="utf-8").read()) for name in names if name.endswith(".jinja")])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
