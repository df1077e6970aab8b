"""hook.before, after and around: order, arguments, results, removal, and what stands on the class afterwards."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading

import pytest
from seqshift import hook


def make_classes():
    """A base and a subclass with one method of each sort; `log` lists the bodies that ran."""
    log = []

    class Base:
        def plain(self, x, *, y=0):
            """Documented."""
            log.append("plain")
            return (x, y)

        @classmethod
        def klass(cls, x):
            log.append("klass")
            return (cls, x)

        @staticmethod
        def static(x):
            log.append("static")
            return (x,)

    class Child(Base):
        pass

    return Base, Child, log


# --- What each sort of hook may do ---


def test_before_sees_the_call_and_changes_nothing_by_default():
    base, _, log = make_classes()

    @hook.before(base, "plain")
    def seen(self, *args, **kwargs):
        log.append((type(self), args, kwargs))

    assert base().plain(1, y=2) == (1, 2)
    assert log == [(base, (1,), {"y": 2}), "plain"]


@pytest.mark.parametrize("changed", [hook.Args((5,), {"y": 6}), ((5,), {"y": 6}), ([5], {"y": 6})])
def test_before_replaces_the_arguments(changed):
    base, _, _ = make_classes()
    hook.before(base, "plain")(lambda self, *args, **kwargs: changed)
    assert base().plain(1, y=2) == (5, 6)


@pytest.mark.parametrize("changed", [0, "ab", (1, {}), ((1,), 2), ((1,), {}, 3), [(1,), {}]])
def test_before_with_an_answer_that_is_no_arguments_is_an_error(changed):
    base, _, log = make_classes()
    hook.before(base, "plain")(lambda self, *args, **kwargs: changed)
    with pytest.raises(TypeError, match=r"Base\.plain returned .*hook\.Args"):
        base().plain(1)
    assert log == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (None, (1, 0)),
        (hook.Result(None), None),
        (hook.Result(7), 7),
        (7, 7),
        (0, 0),
        (False, False),
        ((1, {}), (1, {})),
    ],
)
def test_after_keeps_or_replaces_the_result(changed, expected):
    base, _, _ = make_classes()
    hook.after(base, "plain")(lambda self, result, *args, **kwargs: changed)
    assert base().plain(1) == expected


def test_after_gets_the_arguments_that_the_method_got():
    base, _, log = make_classes()
    hook.before(base, "plain")(lambda self, *args, **kwargs: hook.Args((5,), {}))
    hook.after(base, "plain")(lambda self, result, *args, **kwargs: log.append((result, args, kwargs)))
    base().plain(1, y=2)
    assert log == ["plain", ((5, 0), (5,), {})]


def test_around_runs_in_place_of_the_method():
    base, _, log = make_classes()
    hook.around(base, "plain")(lambda call, self, x, y=0: call(self, x * 10, y=y + 1) * 2)
    assert base().plain(1) == (10, 1, 10, 1)
    hook.around(base, "plain")(lambda call, self, x: "skipped")
    del log[:]
    registered_last = hook.around(base, "klass")(lambda call, cls, x: "skipped")
    assert base.klass(1) == "skipped"
    assert log == []
    registered_last.remove()


def test_class_methods_get_the_class_and_static_methods_get_no_self():
    base, child, log = make_classes()
    hook.before(base, "klass")(lambda cls, x: log.append(("before", cls, x)))
    hook.after(base, "klass")(lambda cls, result, x: log.append(("after", cls, result, x)))
    hook.around(base, "klass")(lambda call, cls, x: call(cls, x + 1))
    hook.before(base, "static")(lambda x: hook.Args((x + 1,), {}))
    hook.after(base, "static")(lambda result, x: (*result, x))
    hook.around(base, "static")(lambda call, x: call(x * 2))
    assert child.klass(1) == (child, 2)
    assert child().klass(1) == (child, 2)
    assert log == 2 * [("before", child, 1), "klass", ("after", child, (child, 2), 1)]
    assert base.static(1) == base().static(1) == child.static(1) == (4, 2)


# --- Order, exceptions ---


def test_hooks_of_each_sort_run_in_the_order_of_registration():
    base, _, log = make_classes()

    def around(name):
        def run(call, self, x):
            log.append(f"enter {name}")
            result = call(self, x)
            log.append(f"leave {name}")
            return result

        return run

    for name in ("1", "2"):
        hook.after(base, "plain")(lambda self, result, x, name=name: log.append(f"after {name}") or (*result, name))
        hook.around(base, "plain")(around(name))
        hook.before(base, "plain")(
            lambda self, x, name=name: log.append(f"before {name}") or hook.Args((x + name,), {})
        )
    assert base().plain("x") == ("x12", 0, "1", "2")
    expected = "before 1, before 2, enter 1, enter 2, plain, leave 2, leave 1, after 1, after 2"
    assert log == expected.split(", ")


@pytest.mark.parametrize("kind", ["before", "around", "after"])
def test_an_exception_of_a_hook_reaches_the_caller(kind):
    base, _, log = make_classes()

    def fail(*args, **kwargs):
        raise KeyError(kind)

    getattr(hook, kind)(base, "plain")(fail)
    with pytest.raises(KeyError, match=kind):
        base().plain(1)
    assert log == (["plain"] if kind == "after" else [])


def test_an_exception_of_the_method_reaches_the_caller_past_the_after_hooks():
    log = []

    class Failing:
        def run(self):
            raise OSError("disk")

    hook.before(Failing, "run")(lambda self: log.append("before"))
    hook.after(Failing, "run")(lambda self, result: log.append("after"))
    with pytest.raises(OSError, match="disk"):
        Failing().run()
    assert log == ["before"]


# --- Removal ---


@pytest.mark.parametrize("name", ["plain", "klass", "static"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_removal_in_any_order_brings_the_same_object_back(name, order):
    base, _, log = make_classes()
    found = vars(base)[name]
    hooks = [
        hook.before(base, name)(lambda *args: log.append(0)),
        hook.around(base, name)(lambda call, *args: log.append(1) or call(*args)),
        hook.after(base, name)(lambda *args: log.append(2)),
    ]
    left = {0, 1, 2}
    for position in order:
        hooks[position].remove()
        left.discard(position)
        del log[:]
        getattr(base(), name)(1)
        assert [entry for entry in log if entry != name] == sorted(left)
        assert (vars(base)[name] is found) == (not left)
    hooks[0].remove()
    assert vars(base)[name] is found


@pytest.mark.parametrize("name", ["plain", "klass", "static"])
def test_an_inherited_method_is_hooked_on_the_subclass_alone_and_deleted_again(name):
    base, child, log = make_classes()
    found = vars(base)[name]
    registered = hook.before(child, name)(lambda *args: log.append("hook"))
    getattr(base(), name)(1)
    assert log == [name]
    getattr(child(), name)(1)
    assert log == [name, "hook", name]
    registered.remove()
    assert name not in vars(child)
    assert vars(base)[name] is found


@pytest.mark.parametrize("name", ["plain", "klass", "static"])
def test_a_base_class_patched_later_stays_in_the_chain_of_an_inherited_method(name):
    base, child, log = make_classes()
    hook.before(child, name)(lambda *args: log.append("child"))
    later = hook.before(base, name)(lambda *args: log.append("base"))
    getattr(child(), name)(1)
    assert log == ["child", "base", name]
    later.remove()
    del log[:]
    getattr(child(), name)(1)
    assert log == ["child", name]


def test_removing_one_of_two_equal_callbacks_leaves_the_other():
    base, _, log = make_classes()

    def callback(self, x):
        log.append("hook")

    first, _second = hook.before(base, "plain")(callback), hook.before(base, "plain")(callback)
    first.remove()
    first.remove()
    base().plain(1)
    assert log == ["hook", "plain"]


def test_a_hook_removed_by_a_hook_is_still_run_by_the_call_under_way():
    base, _, log = make_classes()
    hook.before(base, "plain")(lambda self, x: second.remove())
    second = hook.before(base, "plain")(lambda self, x: log.append("second"))
    base().plain(1)
    base().plain(1)
    assert log == ["second", "plain", "plain"]


# --- Foreign patches on top ---


def patch(owner, name, log):
    """What other packages do: keeps the object that it found and sets a wrapper, with functools.wraps."""
    found = getattr(owner, name)

    @functools.wraps(found)
    def foreign(self, *args, **kwargs):
        log.append("foreign")
        return found(self, *args, **kwargs)

    setattr(owner, name, foreign)
    return foreign, found


def test_under_a_foreign_patch_ours_becomes_a_pass_through():
    base, _, log = make_classes()
    registered = hook.before(base, "plain")(lambda self, x: log.append("hook"))
    foreign, _ = patch(base, "plain", log)
    registered.remove()
    assert vars(base)["plain"] is foreign
    assert base().plain(1) == (1, 0)
    assert log == ["foreign", "plain"]


def test_hooks_on_top_of_a_foreign_patch_do_not_pile_up():
    base, _, log = make_classes()
    under = hook.before(base, "plain")(lambda self, x: log.append("under"))
    foreign, _ = patch(base, "plain", log)
    for _ in range(3):
        over = hook.before(base, "plain")(lambda self, x: log.append("over"))
        del log[:]
        base().plain(1)
        assert log == ["over", "foreign", "under", "plain"]
        over.remove()
        assert vars(base)["plain"] is foreign
    under.remove()


def test_a_pass_through_left_by_a_foreign_patch_is_used_again_and_then_removed():
    base, _, log = make_classes()
    original = vars(base)["plain"]
    hook_under = hook.before(base, "plain")(lambda self, x: log.append("hook"))
    _, ours = patch(base, "plain", log)
    hook_under.remove()
    base.plain = ours  # The foreign package takes its patch back.
    again = hook.before(base, "plain")(lambda self, x: log.append("again"))
    assert vars(base)["plain"] is ours
    base().plain(1)
    assert log == ["again", "plain"]
    again.remove()
    assert vars(base)["plain"] is original


# --- What introspection sees ---


def test_the_wrapper_looks_like_the_method():
    base, _, _ = make_classes()
    before = base.plain
    hook.before(base, "plain")(lambda self, *args, **kwargs: None)
    assert base.plain is not before
    assert (base.plain.__name__, base.plain.__qualname__) == (before.__name__, before.__qualname__)
    assert base.plain.__doc__ == "Documented."
    assert base.plain.__module__ == before.__module__
    assert inspect.signature(base.plain) == inspect.signature(before)


def test_what_a_decorator_leaves_is_callable_and_can_be_decorated_again():
    base, _, log = make_classes()

    @hook.before(base, "klass")
    @hook.before(base, "plain")
    def callback(self, x):
        """Counts."""
        log.append("hook")

    callback(None, 1)
    base().plain(1)
    base.klass(1)
    assert log == ["hook", "hook", "plain", "hook", "klass"]
    assert (callback.__name__, callback.__doc__) == ("callback", "Counts.")
    callback.remove()
    callback.__wrapped__.remove()
    del log[:]
    base().plain(1)
    base.klass(1)
    assert log == ["plain", "klass"]


@pytest.mark.parametrize(
    ("owner", "name", "callback", "error", "words"),
    [
        (dict(), "get", print, TypeError, "the class whose method is hooked"),
        (dict, "absent", print, AttributeError, "dict has no attribute 'absent'"),
        (type("Owner", (), {"value": 3}), "value", print, TypeError, "Owner.value is 3, which is not a method"),
        (type("Owner", (), {"value": property(print)}), "value", print, TypeError, "which is not a method"),
        (type("Owner", (), {"run": print}), "run", 3, TypeError, "got 3, which is not callable"),
    ],
)
def test_what_cannot_be_hooked_is_refused_and_left_alone(owner, name, callback, error, words):
    found = vars(owner).get(name) if isinstance(owner, type) else None
    with pytest.raises(error, match=words):
        hook.before(owner, name)(callback)
    if isinstance(owner, type):
        assert vars(owner).get(name) is found


def test_a_special_method_and_a_callable_that_does_not_bind():
    class Owner:
        size = len

        def __init__(self, x):
            self.x = x

    hook.before(Owner, "__init__")(lambda self, x: hook.Args((x + 1,), {}))
    sized = hook.after(Owner, "size")(lambda result, x: result + 1)
    assert Owner(1).x == 2
    assert Owner(1).size("abc") == 4
    sized.remove()
    assert vars(Owner)["size"] is len


# --- Threads ---


@pytest.mark.timeout(60)
def test_threads_may_register_call_and_remove_at_once():
    base, _, _ = make_classes()
    original = vars(base)["plain"]
    failures = []
    barrier = threading.Barrier(6)

    def work(number):
        barrier.wait()
        for turn in range(200):
            value = (number, turn)
            mine = hook.after(base, "plain")(lambda self, result, x, value=value: (*result, value))
            result = base().plain(1)
            if result[:2] != (1, 0) or result.count(value) != 1 or len(set(result[2:])) != len(result) - 2:
                failures.append(result)
            mine.remove()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert vars(base)["plain"] is original
