"""The explorer in a real browser: drag, type, keys, link, phone, names for screen readers, and the command that writes it."""

from __future__ import annotations

import shlex
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import numpy as np
import pytest

import offtrace as ot
from offtrace.cli import main
from offtrace.traces.registry import unregister
from reports.explorer_page import of_page, ratios, settled, spelled

MISTAKES = (
    ("rho +", 5, "missing"), ("rho ^ 2", 4, "**"), ("foo", 0, "no “foo”"), ("sin(rho)", 0, "no function"),
    ("min(rho)", 0, "2 arguments"), ("(rho", 4, "“)” is missing"), ("rho rho", 4, "cannot follow"), ("rho & mu", 0, "comparison"),
    ("1 < rho < 2", 8, "two at a time"), ("rho = 1", 4, "=="), ("", 0, "missing"), ("where(rho, 1, 2)", 6, "comparison"),
    ("2 $", 2, "means nothing"), ("rho)", 3, "cannot follow"),
)  # fmt: skip


def test_mistakes_are_shown_at_their_character(opened_explorer: Any) -> None:
    tab = opened_explorer("#rules=Own+lam:0.85;Retrace&mdp=one")
    field, wrong = tab.locator('[data-part="ratio"]'), tab.locator("#wrong-ratio")
    for text, at, why in MISTAKES:
        field.fill(text)
        wrong.filter(has_text=f"at character {at + 1}:").filter(has_text=why).filter(has=tab.locator("mark")).wait_for()
        assert field.get_attribute("aria-invalid") == "true"
    field.fill("rho - 2")
    tab.wait_for_selector('#wrong-ratio:has-text("at least 0")')
    field.fill("rho")
    tab.wait_for_selector('[data-part="ratio"][aria-invalid="false"]')
    settled(tab)
    assert tab.said == []


def test_dragging_and_keys_change_a_ratio_and_all_that_follows(opened_explorer: Any) -> None:
    tab = opened_explorer("#mdp=one")
    tab.locator("#ratios").scroll_into_view_if_needed()
    box = tab.locator("#ratios").bounding_box()
    before = tab.locator("#measures").inner_text()
    x = lambda t: box["x"] + 34 * box["width"] / max(260, box["width"]) + (box["width"] - 34) * (t + 0.5) / 32  # noqa: E731
    tab.mouse.move(x(4), box["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(x(4), box["y"] + 11, steps=4)
    tab.mouse.move(x(8), box["y"] + 100)  # faster than a frame: no step is left out
    tab.mouse.up()
    found = ratios(tab)
    assert len(set(found[5:9])) == 1
    assert found[8] < 0.3
    assert tab.locator("#measures").inner_text() != before
    strip = tab.locator("#ratios")
    assert strip.get_attribute("aria-valuetext") == f"step 8 of 32, ρ = {found[8]:g}"
    for key in ("ArrowRight", "0", "ArrowRight", "1", "ArrowUp"):
        strip.press(key)
    assert ratios(tab)[8:11] == [found[8], 0.0, 1.19]
    for _ in range(6):
        strip.press("PageUp")
    assert ratios(tab)[10] == 5.0  # π = ρμ is a probability
    assert tab.said == []


def test_the_strip_and_the_maps_are_above_the_fold(opened_explorer: Any) -> None:
    tab = opened_explorer("#mdp=one")
    tab.evaluate("scrollTo(0, 0)")
    for place in ("#ratios", ".map:last-child .field"):
        box = tab.locator(place).first.bounding_box()
        assert box["y"] > 0
        assert box["y"] + box["height"] <= 900


def test_a_preset_scrolls_to_what_it_changes(opened_explorer: Any) -> None:
    tab = opened_explorer()
    tab.emulate_media(reduced_motion="reduce")
    for key, place in (
        ("theorem-2", "#control-panel"),
        ("truncated", "#mdp"),
        ("theorem-2", "#control-panel"),  # which the one before does not show
        ("explode", "#ratios"),
    ):
        tab.locator(f"[data-preset={key}]").click()
        tab.wait_for_function(f"""() => {{
            const box = document.querySelector("{place}").getBoundingClientRect();
            return box.top >= 0 && box.top < innerHeight;
        }}""")
    tab.locator("[data-preset=truncated]").click()
    tab.locator("#preset-mdp", has_text="1.0138").wait_for()
    tab.emulate_media(reduced_motion="no-preference")
    assert tab.locator("#refuted a").get_attribute("href") == "https://arxiv.org/abs/2112.12281"
    assert tab.said == []


def test_no_rule_replaces_another_silently_and_lambda_stays(opened_explorer: Any) -> None:
    tab = opened_explorer("#rules=Retrace+lam:0.62;RBIS+lam:0.7;OneStep;TreeBackup+lam:0.5&mdp=one")
    titles = tab.locator(".slot:not(.add) select")
    before = titles.evaluate_all("s => s.map((x) => x.value)")
    tab.locator("#show-own").click()
    assert titles.evaluate_all("s => s.map((x) => x.value)") == before
    assert "4 rules are shown already: remove one" in tab.locator("#full").inner_text()
    for name, lam in (("NonMarkovRetrace", "0.62"), ("OneStep", None), ("RBIS", "0.62")):
        titles.first.select_option(name)
        value = tab.locator(".slot").first.locator("input[type=range]")
        assert (value.input_value() if value.count() else None) == lam
    tab.locator("[aria-label='remove rule 3, One-step']").click()
    assert tab.locator("#full").inner_text() == ""
    tab.locator("#show-own").click()
    assert titles.evaluate_all("s => s.map((x) => x.value)") == ["RBIS", "RBIS", "TreeBackup", "Own"]
    assert tab.said == []


def test_the_link_of_a_file_is_a_command_that_opens_its_state(
    opened_explorer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = opened_explorer("#rules=Retrace+lam:0.25&gamma=0.5&mdp=one")
    tab.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.locator("#link").click()
    command = shlex.split(tab.wait_for_function("window.copied").json_value())
    assert command[:2] == ["offtrace", "explore"]
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["explore", command[2], "--output", str(tmp_path / "e.html")]) == 0
    assert parse_qs(opened[0].partition("#")[2])["gamma"] == ["0.5"]
    assert opened[0].partition("#")[2] == command[2].lstrip("#")


def test_maps_and_curves_are_read_by_keys(opened_explorer: Any) -> None:
    tab = opened_explorer("#mdp=one")
    tab.locator(".map .field").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        tab.keyboard.press(key)
    assert "start 0, step 2" in tab.locator("#tip").inner_text()
    tab.locator("#by-lag").focus()
    tab.keyboard.press("ArrowRight")
    assert "lag 0" in tab.locator("#tip").inner_text()
    assert tab.said == []


GO_TO = """(link) => new Promise((done) => {
    addEventListener("hashchange", () => done(), { once: true });
    location.hash = link;
})"""


def test_a_link_holds_the_whole_state(opened_explorer: Any) -> None:
    rng = np.random.default_rng(5)
    for trace in (ot.TruncatedIS(bound=(0.0, np.inf, 0.5), lam=0.73), ot.ABQ(zeta=0.31, psi0=0.9, psi_max=3.0)):
        numbers = " ".join(f"{k}:{spelled(v)}" for k, v in of_page(trace)["numbers"].items())
        rho = [float(f"{x:.3g}") for x in 2 ** rng.normal(size=20)]
        given = {
            "rules": f"{type(trace).__name__} {numbers};Own lam:0.4", "rho": ",".join(f"{x:g}" for x in rho),
            "gamma": "0.83", "mu": "0.15",
            "mdp": "cliff", "p": "0.61", "m": "0.33", "decay": "lam", "ratio": "rho * 1", "cap": "1 + mu", "recursive": "0",
        }  # fmt: skip
        tab = opened_explorer("#" + urlencode(given))
        shown = tab.locator("#measures, #operators").all_inner_texts()
        tab.locator("#pattern").select_option("ones")
        tab.locator("#pattern").select_option("near")
        assert ratios(tab) != rho
        tab.evaluate(GO_TO, "#" + urlencode(given))
        settled(tab)
        assert ratios(tab) == rho
        again = parse_qs(tab.evaluate("location.hash")[1:])
        assert {k: again[k][0] for k in given if k not in ("rho", "rules")} == {
            k: v for k, v in given.items() if k not in ("rho", "rules")
        }
        assert tab.locator("#measures, #operators").all_inner_texts() == shown
        assert tab.said == []


def test_a_link_that_makes_no_sense_is_the_first_preset_and_the_page_says_so(opened_explorer: Any) -> None:
    tab = opened_explorer("#rules=Nobody;&gamma=7&rho=x,y&mdp=none&p=-1&decay=((")
    assert tab.locator("#measures tbody tr").count() == 4
    tab.locator(
        "#preset", has_text="cannot read a part of the link: gamma=7, p=-1, rho=x,y, mdp=none, Nobody."
    ).wait_for()
    assert tab.locator('[data-part="decay"]').get_attribute("aria-invalid") == "true"
    assert tab.said == []


INHERITED = ("constructor", "toString", "__proto__", "valueOf(1)", "hasOwnProperty(rho, 1)", "rho + isPrototypeOf")


def test_what_every_object_of_javascript_has_is_no_name_of_a_rule(opened_explorer: Any) -> None:
    for text in INHERITED:
        tab = opened_explorer("#" + urlencode({"rules": "Own lam:0.9;Retrace lam:0.9", "mdp": "one", "decay": text}))
        wrong = tab.locator("#wrong-decay", has_text="there is no")
        wrong.wait_for()
        assert tab.locator('[data-part="decay"]').get_attribute("aria-invalid") == "true"
        assert tab.locator("#measures tbody tr").count() == 2  # the other rule is drawn
        assert tab.locator("#operators tbody tr").nth(1).locator("[data-v]").count() > 0
        assert tab.said == []
    link = "#rules=constructor;toString+lam:1;Retrace+__proto__:1+valueOf:1&mdp=constructor&gamma=toString"
    tab = opened_explorer(link)
    assert tab.locator("#measures tbody tr").count() == 1
    tab.locator("#preset", has_text="mdp=constructor, constructor, toString, __proto__:1 of Retrace").wait_for()
    assert tab.said == []


def test_a_phone_needs_no_sideways_scrolling(opened_explorer: Any) -> None:
    tab = opened_explorer("#rules=TruncatedIS+bound:0,inf,0;FlattenedIS;ABQ;Own", width=320)
    for width in (320, 390, 768):
        tab.set_viewport_size({"width": width, "height": 900})
        settled(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.said == []


NAMELESS = """() => {
    const named = (e) => e.getAttribute("aria-label") || (e.labels?.length ? [...e.labels].some((l) => l.textContent.trim()) : e.tagName !== "SELECT" && e.textContent.trim());
    return [...document.querySelectorAll("input, select, button, [role=slider], [role=img], [tabindex='0']")].filter((e) => !named(e)).map((e) => e.outerHTML);
}"""  # noqa: E501


def test_what_can_be_operated_has_a_name(opened_explorer: Any) -> None:
    tab = opened_explorer(scheme="dark")
    assert tab.evaluate(NAMELESS) == []
    assert [url for url in tab.asked if not url.startswith(("file:", "blob:"))] == []
    before = tab.locator("canvas").first.evaluate("(c) => c.toDataURL()")
    tab.locator("#theme").click()
    settled(tab)
    assert tab.locator("canvas").first.evaluate("(c) => c.toDataURL()") != before
    tab.locator("[aria-label='remove rule 2, Non-Markov Retrace']").click()
    assert tab.locator(".slot:not(.add)").count() == 3
    tab.locator(".slot.add button").click()
    tab.locator(".slot select").nth(3).select_option("QSigma")
    settled(tab)
    assert "Q(σ)" in tab.locator("#operators").inner_text()
    assert tab.said == []


def test_the_command_writes_the_page_with_rules_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules_for_the_explorer.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nimport offtrace as ot\n"
        "@ot.register\n@dataclass(frozen=True)\nclass Halved(ot.Trace):\n    lam: float = 1.0\n    title: ClassVar = 'Halved'\n"
        "    reads: ClassVar = ('rho',)\n    @staticmethod\n    def factors(xp, pi, mu, rho, lam):\n"
        "        return lam, xp.minimum(rho, 0.5), ot.INFINITY\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert (
            main(
                [
                    "explore",
                    "--no-open",
                    "--output",
                    str(tmp_path / "sub" / "e.html"),
                    "--module",
                    "rules_for_the_explorer",
                ]
            )
            == 0
        )
        assert "least(rho, 0.5)" in (tmp_path / "sub" / "e.html").read_text()
    finally:
        for rule in ot.rules():
            if rule.__name__ == "Halved":
                unregister(rule)
    assert main(["explore", "--no-open", "--module", "no_such_module_anywhere"]) == 2
    assert "no_such_module_anywhere" in capsys.readouterr().err
