"""HTML from templates, by Jinja2. Each package has its own in the folder `templates`; every value is escaped."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def rendered(package: str, template: str, **values: object) -> str:
    """A template of a package, filled in."""
    return _environment(package).get_template(template).render(**values)


@cache
def _environment(package: str) -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ImportError("pages and tables in notebooks need Jinja2: pip install jinja2", name="jinja2") from None
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

    def source(name: str) -> Markup:
        """A style sheet or a script as it is: it is no template."""
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    environment.globals["source"] = source
    environment.globals["digest"] = digest
    environment.filters["marked"] = marked
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return environment


def digest(script: str) -> str:
    """The script's hash as a content security policy states it: the browser runs this script and no other.

    >>> digest("alert(1)")
    'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='
    """
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


def marked(text: str) -> Markup:
    """`**so**` in bold and what stands between backticks as code; everything else is text.

    >>> print(marked("**RBIS** has a λ < 1, by `trim_mean`"))
    <b>RBIS</b> has a λ &lt; 1, by <code>trim_mean</code>
    """
    from markupsafe import Markup, escape

    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))
