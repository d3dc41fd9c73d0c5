r"""Text as pdflatex prints it with its plain fonts and no package.

``pylatexenc`` is not used: of its 1,553 macros 734 need packages or other fonts, and stop pdflatex without them. The
macros below, and what ``unicodedata`` decomposes into them, are those of LaTeX itself.
"""

from __future__ import annotations

import unicodedata
from functools import cache

TEXT = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": r"\textasciigrave{}",
    "\u00a0": "~",
    "\u202f": r"\,",
    "\u2009": r"\,",
    "\u2010": "-",
    "\u2011": "-",
    "\u2012": "--",
    "–": "--",
    "—": "---",
    "―": "---",
    "…": r"\dots{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "¡": r"\textexclamdown{}",
    "¿": r"\textquestiondown{}",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "•": r"$\bullet$",
    "‣": r"$\triangleright$",
    "§": r"\S{}",
    "¶": r"\P{}",
    "©": r"\textcopyright{}",
    "®": r"\textregistered{}",
    "°": r"$^\circ$",
    "‰": r"\textperthousand{}",
    "£": r"\pounds{}",
    "€": r"\texteuro{}",
    "¥": r"\textyen{}",
    "¢": r"\textcent{}",
    "¦": r"\textbrokenbar{}",
    "ª": r"\textordfeminine{}",
    "º": r"\textordmasculine{}",
    "ß": r"{\ss}",
    "ẞ": "SS",
    "æ": r"{\ae}",
    "Æ": r"{\AE}",
    "œ": r"{\oe}",
    "Œ": r"{\OE}",
    "ø": r"{\o}",
    "Ø": r"{\O}",
    "ł": r"{\l}",
    "Ł": r"{\L}",
    "ħ": r"$\hbar$",
    "ʼ": "'",
    "ı": r"{\i}",
    "ȷ": r"{\j}",
}

OTHER_ENCODING = {
    "«": r"\guillemotleft",
    "»": r"\guillemotright",
    "‹": r"\guilsinglleft",
    "›": r"\guilsinglright",
    "„": r"\quotedblbase",
    "‚": r"\quotesinglbase",
    "đ": r"\dj",
    "Đ": r"\DJ",
    "ð": r"\dh",
    "Ð": r"\DH",
    "þ": r"\th",
    "Þ": r"\TH",
    "ŋ": r"\ng",
    "Ŋ": r"\NG",
}
"""Signs that the default font encoding lacks, and T1, which LaTeX knows without a package, has."""

SIGNS = r"""
· cdot  ⋅ cdot  × times  ÷ div  ± pm  ∓ mp  − -  ∗ *  ∘ circ  ◦ circ  ∙ bullet  ● bullet  √ surd  ∛ sqrt[3]{}
⊕ oplus  ⊖ ominus  ⊗ otimes  ⊘ oslash  ⊙ odot  = =  ≠ neq  ≡ equiv  ≔ :=  ≤ leq  ≥ geq  ⩽ leq  ⩾ geq
≲ stackrel<\sim  ≳ stackrel>\sim  ≪ ll  ≫ gg  ∼ sim  ≃ simeq  ≅ cong  ≈ approx  ≍ asymp  ∝ propto  ≺ prec
≻ succ  ≼ preceq  ≽ succeq  ⪯ preceq  ⪰ succeq  ∀ forall  ∃ exists  ∂ partial  ∆ Delta  ∇ nabla  ∅ emptyset
∈ in  ∋ ni  ∉ notin  ∏ prod  ∐ coprod  ∑ sum  ∞ infty  ∠ angle  ∣ mid  ∥ parallel  ∧ wedge  ∨ vee  ¬ neg  ∩ cap
∪ cup  ∫ int  ∮ oint  ⊂ subset  ⊃ supset  ⊆ subseteq  ⊇ supseteq  ⊎ uplus  ⊓ sqcap  ⊔ sqcup  ⊢ vdash  ⊣ dashv
⊤ top  ⊥ bot  ← leftarrow  → rightarrow  ↑ uparrow  ↓ downarrow  ↔ leftrightarrow  ↕ updownarrow  ↖ nwarrow
↗ nearrow  ↘ searrow  ↙ swarrow  ↦ mapsto  ↩ hookleftarrow  ↪ hookrightarrow  ⇌ rightleftharpoons  ⇐ Leftarrow
⇒ Rightarrow  ⇑ Uparrow  ⇓ Downarrow  ⇔ Leftrightarrow  ⇕ Updownarrow  ⟵ longleftarrow  ⟶ longrightarrow
⟷ longleftrightarrow  ⟹ Longrightarrow  ⟺ Longleftrightarrow  ⌈ lceil  ⌉ rceil  ⌊ lfloor  ⌋ rfloor  ⟨ langle
⟩ rangle  ‖ Vert  ⋯ cdots  ⋮ vdots  ⋱ ddots  ⋆ star  ★ star  △ triangle  ▽ bigtriangledown  ▲ triangle
▼ bigtriangledown  ○ bigcirc  ◯ bigcirc  ✓ surd  ✔ surd  ✗ times  ✘ times  ℓ ell  ℏ hbar  ℵ aleph  ℘ wp  ℜ Re
ℑ Im  ϑ vartheta  ϕ phi  ϖ varpi  ϱ varrho  ϵ epsilon  ς varsigma  ′ '  ″ ''  ‴ '''  ⁄ /  ∕ /
"""
MATHEMATICS = dict(zip(SIGNS.split()[::2], SIGNS.split()[1::2], strict=True))
"""Signs of mathematics, by the name of their macro or as they are."""

NAMES = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi
omega
"""
GREEK = NAMES.split()
LATIN_CAPITALS = dict(
    zip(
        ("alpha", "beta", "epsilon", "zeta", "eta", "iota", "kappa", "mu", "nu", "rho", "tau", "chi"),
        "ABEZHIKMNPTX",
        strict=True,
    )
)
"""Greek capitals that look like Latin letters, and have no macro."""

ABOVE = {
    "\u0300": ("`", "grave"),
    "\u0301": ("'", "acute"),
    "\u0302": ("^", "hat"),
    "\u0303": ("~", "tilde"),
    "\u0304": ("=", "bar"),
    "\u0306": ("u", "breve"),
    "\u0307": (".", "dot"),
    "\u0308": ('"', "ddot"),
    "\u030a": ("r", "mathring"),
    "\u030b": ("H", None),
    "\u030c": ("v", "check"),
    "\u20d7": (None, "vec"),
}
"""Combining accents above a letter: the macro over a letter, and the macro of mathematics over anything."""

BELOW = {"\u0323": "d", "\u0326": "textcommabelow", "\u0327": "c", "\u0331": "b"}
OGONEK, STROKE = "\u0328", "\u0338"


def escape(text: str) -> str:
    """Write ``text`` as pdflatex prints it; a character without a macro as its code point."""
    composed = unicodedata.normalize("NFC", text)
    written = [_written(sign) for sign in composed]
    for place, sign in enumerate(composed):
        # A letter with an accent that Unicode has no sign of its own for.
        if (
            place
            and unicodedata.combining(sign)
            and (joined := _accented(written[place - 1], composed[place - 1], sign))
        ):
            written[place - 1 : place + 1] = ["", joined]
        elif sign == "-" and composed[place - 1 : place] == "-":
            written[place] = "{}-"  # two hyphens are no dash
    return "".join(written)


def _written(sign: str) -> str:
    found = _macro(sign)
    return f"\\texttt{{U+{ord(sign):04X}}}" if found is None else found


@cache
def _macro(sign: str) -> str | None:
    """One sign in LaTeX; None where there is no way to write it."""
    if sign in TEXT:
        return TEXT[sign]
    if " " <= sign <= "~":
        return sign
    if sign in OTHER_ENCODING:
        return _in_t1(OTHER_ENCODING[sign])
    if sign in MATHEMATICS:
        name = MATHEMATICS[sign]
        return f"$\\{name}$" if name[0].isalpha() else f"${name}$"
    if (kind := unicodedata.category(sign)) in ("Cc", "Zs", "Zl", "Zp"):
        return " "
    if kind == "Cf":
        return ""  # no width: joiners, marks of direction
    return _greek(sign) or _decomposed(sign)


def _greek(sign: str) -> str | None:
    match unicodedata.name(sign, "").replace("LAMDA", "LAMBDA").lower().split():
        case ["greek", size, "letter", "omicron"]:
            return "o" if size == "small" else "O"
        case ["greek", "capital", "letter", name] if name in LATIN_CAPITALS:
            return LATIN_CAPITALS[name]
        case ["greek", size, "letter", name] if name in GREEK:
            return f"$\\{name if size == 'small' else name.title()}$"
    return None


def _decomposed(sign: str) -> str | None:
    """A sign by what Unicode says that it is made of: a letter and accents, a raised digit, a fraction."""
    kind, _, codes = unicodedata.decomposition(sign).rpartition("> ")
    parts = [chr(int(code, 16)) for code in codes.split()]
    if not parts:
        return None
    if not kind:
        base = _macro(parts[0])
        return base if len(parts) == 1 else None if base is None else _accented(base, parts[0], parts[1])
    inner = [_macro(part) for part in parts]
    if None in inner:
        return None
    match kind.removeprefix("<"):
        case "super":
            return f"\\textsuperscript{{{''.join(map(str, inner))}}}"
        case "sub":
            return f"\\textsubscript{{{''.join(map(str, inner))}}}"
        case "circle":
            return f"\\textcircled{{{''.join(map(str, inner))}}}"
        case "fraction":
            above, _, below = "".join(map(str, inner)).partition("$/$")
            return f"\\textsuperscript{{{above}}}/\\textsubscript{{{below}}}"
    return "".join(map(str, inner))


def _accented(base: str, letter: str, mark: str) -> str | None:
    """``base``, the way to write ``letter``, under or over a combining mark; None where there is no way."""
    if mark == OGONEK:
        return _in_t1(f"\\k{{{base}}}") if letter.isascii() else None
    if mark == STROKE:
        return f"$\\not{base[1:]}" if base.startswith("$") else f"$\\not{base}$" if base in "=<>" else None
    if mark in BELOW:
        return f"{{\\{BELOW[mark]}{{{base}}}}}"
    if mark not in ABOVE:
        return None
    over_letter, over_anything = ABOVE[mark]
    if letter.isascii() and letter.isalpha() and over_letter:
        without_dot = f"\\{letter}" if letter in "ij" else base
        return f"{{\\{over_letter}{{{without_dot}}}}}"
    return over_anything and f"$\\{over_anything}{{\\mbox{{{base}}}}}$"


def _in_t1(macro: str) -> str:
    return f"{{\\fontencoding{{T1}}\\selectfont{macro}}}"
