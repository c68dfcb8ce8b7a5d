"""Who waits for children, and leaves."""

from __future__ import annotations

import contextvars
import threading

from copyahead.children.asker import Asker, has_left, while_asked


def test_what_works_for_one_who_leaves_is_ended_once_and_nothing_else() -> None:
    ended: list[str] = []
    asker = Asker()

    def work() -> None:
        asker.set_here()
        with while_asked(lambda: ended.append("before")):
            assert not has_left()
        with while_asked(lambda: ended.append("during")):
            asker.leave()
            asker.leave()
            assert has_left()
        with while_asked(lambda: ended.append("after")):
            pass

    contextvars.copy_context().run(work)
    assert ended == ["during", "after"]
    assert not has_left()
    with while_asked(lambda: ended.append("nobody")):
        pass
    assert ended == ["during", "after"]


def test_nothing_is_over_while_it_is_being_ended() -> None:
    asker, ending, permit, over = Asker(), threading.Event(), threading.Event(), threading.Event()

    def end() -> None:
        ending.set()
        assert permit.wait(30)

    def work() -> None:
        asker.set_here()
        with while_asked(end):
            assert ending.wait(30)
        over.set()

    threads = [threading.Thread(target=work), threading.Thread(target=asker.leave)]
    threads[0].start()
    while not asker._endings:
        threads[0].join(0.001)
    threads[1].start()
    assert ending.wait(30)
    assert not over.wait(0.2)
    permit.set()
    assert over.wait(30)
    for thread in threads:
        thread.join(30)
