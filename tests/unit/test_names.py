"""Which names a cell reads and binds: by examples, and against runs of random programs."""

import ast
import random
import sys
import warnings

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from clusterkernel.errors import PayloadError
from clusterkernel.payload.names import Kind, analyse, not_builtin
from tests.unit import programs

newer = pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax came with Python 3.12")
groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="the syntax came with Python 3.11")


def reads(source: str) -> str:
    return " ".join(sorted(not_builtin(analyse(source).reads)))


def sure_reads(source: str) -> str:
    names = analyse(source)
    return " ".join(sorted(not_builtin(names.reads - names.doubtful)))


def assigns(source: str) -> str:
    return " ".join(one.name for one in analyse(source).assigns)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("y = x", "x"),
        ("x = 1; y = x", ""),
        ("x += 1", "x"),
        ("x.y = 1", "x"),
        ("x[i] = 1", "i x"),
        ("x.y += 1", "x"),
        ("d.x += (d := {})", "d"),
        ("x: T = 1", "T"),
        ("x: T", "T"),
        ("x: int\nprint(x)", "x"),
        ("print(len('a'))", ""),
        ("x = y = z; print(x, y)", "z"),
        ("(a, [b, *c]) = t; print(a, b, c)", "t"),
        ("a[0], a = b", "a b"),
        ("a, a[0] = b", "b"),
        ("f'{x!r:>{w}}'", "w x"),
        ("f'{(y := x)}{y}'", "x"),
        ("{(k := a): k}", "a"),
        ("{a: k, (k := b): 1}", "a b k"),
        # imports
        ("import a.b.c; a.b", ""),
        ("import a.b as c; a", "a"),
        ("from a import b as c; c", ""),
        ("from . import b; b", ""),
        ("from __future__ import annotations\nannotations", ""),
        ("try:\n  import tomllib\nexcept ImportError:\n  import tomli as tomllib\ntomllib", ""),
        # del
        ("del x", "x"),
        ("x = 1\ndel x", ""),
        ("x = 1\ndel x\nx", ""),
        ("del x[i], y.z", "i x y"),
        # ways
        ("if c:\n  x = 1\nprint(x)", "c x"),
        ("if c:\n  x = 1\nelse:\n  x = 2\nprint(x)", "c"),
        ("if c:\n  x = 1\nelif d:\n  x = 2\nelse:\n  raise E\nprint(x)", "E c d"),
        ("if True:\n  x = 1\nprint(x)", ""),
        ("if 0:\n  print(z)", ""),
        ("for i in r:\n  pass\nprint(i)", "i r"),
        ("for i in r:\n  x = 1\nelse:\n  x = 2\nprint(x)", "r"),
        ("for i in r:\n  if i: break\nelse:\n  x = 2\nprint(x)", "r x"),
        ("for i in r:\n  print(last)\n  last = i", "last r"),
        ("while c:\n  x = 1\nprint(x)", "c x"),
        ("while True:\n  x = 1\n  if x: break\nprint(x)", ""),
        ("while True:\n  if c: break\n  x = 1\nprint(x)", "c x"),
        ("while (line := f()):\n  print(line)\nprint(line)", "f"),
        ("try:\n  x = 1\nexcept E:\n  print(x)", "E x"),
        ("try:\n  x = 1\nexcept E as e:\n  print(e)\n  raise\nprint(x)", "E"),
        ("try:\n  x = f()\nexcept E:\n  x = None\nprint(x)", "E f"),
        ("try:\n  f()\nexcept E as e:\n  pass\nprint(e)", "E e f"),
        ("try:\n  x = 1\nfinally:\n  y = 1\nprint(x, y)", ""),
        ("try:\n  x = 1\nfinally:\n  print(x)", "x"),
        ("try:\n  f()\nexcept E:\n  raise\nelse:\n  x = 1\nprint(x)", "E f"),
        ("with open('p') as f:\n  x = f.read()\nprint(f, x)", ""),
        ("with torch.no_grad():\n  x = 1\nprint(x)", "torch"),
        ("with suppress(E):\n  x = f()\nprint(x)", "E f suppress x"),
        ("with a as b, c(b) as d:\n  print(b, d)", "a c"),
        ("(a := 1) and (b := 2)\nprint(a, b)", "b"),
        ("if (a := f()) and (b := g(a)):\n  print(a, b)", "f g"),
        ("if not (a and (b := c)):\n  pass\nelse:\n  print(b)", "a c"),
        ("(x := 1) if c else (x := 2)\nprint(x)", "c"),
        ("a < (b := c) < (d := e)\nprint(b, d)", "a c d e"),
        ("assert (m := f())\nprint(m)", "f"),
        # match
        ("match v:\n  case [a, *b]:\n    print(a, b)\n  case {'k': c, **d}:\n    print(c, d)", "v"),
        ("match v:\n  case P(x=q) if q > z:\n    print(q)\n  case lib.CONST:\n    pass", "P lib v z"),
        ("match v:\n  case 1:\n    x = 1\n  case _:\n    x = 2\nprint(x)", "v"),
        ("match v:\n  case 1:\n    x = 1\nprint(x)", "v x"),
        ("match v:\n  case (1 as n) | (2 as n):\n    print(n)", "v"),
        # comprehensions
        ("[i for i in r]", "r"),
        ("[i for i in r]\nprint(i)", "i r"),
        ("[x for x in x]", "x"),
        ("[x for y in z for x in y if x > t]", "t z"),
        ("[y for x in d if (y := f(x))]", "d f"),
        ("r = [last := v for v in data]\nprint(last)", "data last"),
        ("{k: v for k, v in d.items()}", "d"),
        ("(x for x in a for a in b)", "a b"),
        ("[[i * j for j in range(i)] for i in r]", "r"),
        # functions
        ("def f(a, /, b=d, *c, k=e, **m): return a, b, c, k, m", "d e"),
        ("def f(x: A) -> B: pass", "A B"),
        ("def f():\n  y = x\n  return y", "x"),
        ("def f():\n  print(y)\n  y = 1", ""),
        ("def f():\n  x: T = 1", ""),
        ("def f():\n  global g\n  g = 1\nf()\nprint(g)", "g"),
        ("def f():\n  def g():\n    nonlocal a\n    a = b\n  a = 1", "b"),
        ("def f():\n  return lambda q: q + w", "w"),
        ("def f():\n  return [u for u in v if u != w]", "v w"),
        ("def f():\n  import os.path\n  return os", ""),
        ("def f():\n  try: pass\n  except E as e: return e", "E"),
        ("def f():\n  for i, (j, *k) in r: print(i, j, k)", "r"),
        ("def f():\n  with a as (b, c): return b, c", "a"),
        ("def f(v):\n  match v:\n    case [a, *b] | {'k': a, **b}: return a, b", ""),
        ("def f():\n  class A:\n    x = 1\n    y = x\n    def g(self): return x, __class__", "x"),
        ("def f():\n  x = 1\n  del x", ""),
        ("def f():\n  global x\n  del x", "x"),
        ("def f():\n  if (n := g()): return n", "g"),
        ("def f():\n  return [n for i in r if (n := i)], n", "r"),
        ("@deco\ndef f(): pass", "deco"),
        ("async def f():\n  async with a as b:\n    async for c in b: await c", "a"),
        ("f = lambda x, y=z: x + y + w", "w z"),
        ("def fib(n): return fib(n - 1)\nfib(3)", ""),
        # a function runs when its name is used
        ("def train(): return helper()\ndef helper(): pass\ntrain()", ""),
        ("def train(): return helper()\nm = train()\ndef helper(): pass", "helper"),
        ("def train(): return helper()\nrun(train)\ndef helper(): pass", "helper run"),
        ("@deco\ndef train(): return helper()\ndef helper(): pass", "deco helper"),
        ("def a(): b()\ndef b(): c()\ndef c(): pass\na()", ""),
        ("def a(): b()\ndef b(): c()\na()\ndef c(): pass", "c"),
        ("def a(): b()\nif x: a()\ndef b(): pass\na()", "b x"),
        ("def a(): b()\nif x: a()\ndef b(): return c\na()\nc = 1", "b c x"),
        ("while g():\n  def g(): return late\nelse:\n  late = 1", "g late"),
        ("for i in r:\n  if i: f()\n  def f(): return late\nlate = 1", "f late r"),
        ("for i in r:\n  def f(): return late\n  late = 1\n  f()", "late r"),
        ("f = lambda: late()\nlate = 1\nf()", ""),
        ("fs = [lambda: late()]\nlate = 1", "late"),
        ("def f(): return late\neval('f()')\nlate = 1", "late"),
        # classes
        ("class A(B, metaclass=M):\n  x = y\n  z = x", "B M y"),
        ("class A:\n  x = 1\n  def f(self): return x", "x"),
        ("class A:\n  x = 1\n  l = [x for _ in y]", "x y"),
        ("class A:\n  n = 3\n  l = [i for i in range(n)]", ""),
        ("class A:\n  print(__module__, __qualname__)", ""),
        ("class A:\n  x = 1\n  del x\n  print(x)", "x"),
        ("class A:\n  def f(self): return super().f(), __class__", ""),
        ("class A:\n  @property\n  def p(self): return Late()\nclass Late: pass\nA().p", ""),
        ("class A:\n  def f(self): return Late()\nclass Late: pass\nA()", ""),
        ("class A(Base):\n  def f(self): return Late()\nclass Late: pass\nA()", "Base Late"),
        ("class A:\n  x = 1\n  class B:\n    print(x)", "x"),
        ("class _A:\n  def f(self): return __x", "_A__x"),
        ("class A:\n  if c:\n    x = 1\n  print(x)", "c x"),
        ("class A:\n  global x\n  x = 1\nprint(x)", ""),
        # async at the top level
        ("x = await f()\nprint(x)", "f"),
        ("async for i in a:\n  print(i)", "a"),
        ("async with a as b:\n  x = [j async for j in b]\nprint(x)", "a x"),
    ],
)
def test_reads(source: str, expected: str) -> None:
    assert reads(source) == expected


@groups
def test_an_exception_group_is_read_like_an_exception() -> None:
    assert reads("try:\n  x = 1\nexcept* E as e:\n  print(x, e)") == "E x"


@newer
def test_type_parameters_are_names_of_their_own() -> None:
    assert reads("def f[T: A](x: T) -> T:\n  y: T\n  return T") == "A"
    assert reads("class C[T](B[T]):\n  x: T\n  def m(self) -> T: return T") == "B"
    assert reads("type X[T] = list[T] | Y\nX") == "Y"
    assert assigns("type X = int") == "X"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("print(x); x = 1", "x"),
        ("if c: x = 1\nprint(x)", "c"),
        ("def f(): return x\nx = 1", ""),
        ("def f(): return x\nf()\nx = 1", ""),
        ("def f(): return x\nf()", "x"),
        ("a()\nfrom lib import *\nb()", "a"),
        ("for i in r: print(last); last = i", "last r"),
    ],
)
def test_a_read_that_the_cell_may_serve_itself_is_doubtful(source: str, expected: str) -> None:
    assert sure_reads(source) == expected


def test_what_a_shell_line_reads_is_doubtful() -> None:
    names = analyse("__clusterkernel_shell__('ls $d', lambda: 'ls {}'.format((d)))\nprint(e)")
    assert set(names.reads) == {"__clusterkernel_shell__", "d", "e", "print"}
    assert "d" in names.doubtful
    assert "e" not in names.doubtful


def test_bindings_come_in_order_with_their_kind() -> None:
    names = analyse(
        "import os, a.b\n"
        "from m import n as o\n"
        "def f():\n  global inner\n  inner = 1\n  local = 2\n"
        "class C:\n  member = 1\n"
        "x, (y, *z) = 1, (2, 3)\n"
        "for i in range(3):\n  if (w := i): v: int = w\n"
        "with open('p') as p: q += 1\n"
        "[t := s for s in z]\n"
        "x.attribute = 1\n"
        "try: import fast\nexcept ImportError as e: fast = None\n"
        "u: int\n"
        "del x, y\n"
    )
    values = [one.name for one in names.assigns if one.kind is Kind.VALUE]
    assert values == ["inner", "x", "y", "z", "i", "w", "v", "p", "q", "t", "fast", "e"]
    rest = [(one.name, one.kind.value) for one in names.assigns if one.kind is not Kind.VALUE]
    assert rest == [("os", "import"), ("a", "import"), ("o", "import"), ("f", "function"), ("C", "class")]
    assert names.deletes == ("x", "y")
    assert [one.line for one in names.assigns][:3] == [1, 1, 2]


def test_star_imports_are_listed() -> None:
    names = analyse("from pylab import *\nfrom ..near import *\nplot(x)")
    assert names.stars == ("pylab", "..near")
    assert names.doubtful == names.reads == {"plot", "x"}


def test_lines_are_those_of_the_notebook() -> None:
    names = analyse("a\nb = a\n\nb, c\ndef f():\n  return d", first_line=2)
    assert names.read_lines == {"a": 2, "c": 5, "d": 7}
    assert [one.line for one in names.assigns] == [3, 6]


def test_top_level_await_is_told() -> None:
    assert analyse("x = await y").awaits
    assert analyse("[i async for i in y]").awaits
    assert not analyse("async def f():\n  await y").awaits


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\ny = = 2\n", 3, "y = = 2"),
        ("def f():\npass", 3, "pass"),
        ("x = 1\nreturn x", 3, "return x"),
        ("break", 2, "break"),
        ("def f(a, a): pass", 2, "def f(a, a): pass"),
        ("x = (1,\n", 2, "x = (1,"),
        ("nonlocal x", 2, "nonlocal x"),
        ("print 'x'", 2, "print 'x'"),
        ("x = '" + "a" * 200, 2, "x = 'aaa"),
    ],
)
def test_a_syntax_error_is_one_line(source: str, line: int, text: str) -> None:
    with pytest.raises(PayloadError) as caught:
        analyse(source, first_line=2)
    message = str(caught.value)
    assert f"line {line}:" in message
    assert text in message
    assert "\n" not in message


@pytest.mark.parametrize("source", ["x = 1\0", "(" * 3000 + ")" * 3000, " + ".join("a" * 5000)])
def test_what_no_parser_reads_is_refused(source: str) -> None:
    with pytest.raises(PayloadError) as caught:
        analyse(source)
    assert "\n" not in str(caught.value)


def test_a_warning_of_the_compiler_stays_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reads(r"x is 1; '\d'; assert (x, 'y')") == "x"


@settings(max_examples=400, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_what_a_run_reads_from_outside_was_foretold(seed: int) -> None:
    source = programs.Writer(random.Random(seed)).program()
    note(source)
    try:
        names = analyse(source)
    except PayloadError:
        return  # a name is a parameter and global, and the like
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for again in range(4):
        seen = programs.run(code, random.Random(seed + again))
        assert seen <= names.reads
