r"""Escape Unicode text for pdflatex with its default fonts and without packages.

``pylatexenc`` is not used because 734 of its 1,553 macros require packages or other fonts, without which pdflatex stops
with an error. The macros below are part of LaTeX itself; ``unicodedata`` decomposes other characters into them.
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
"""Macros of characters in text mode."""

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
"""Macros of characters that are missing in the default font encoding and available in T1 without a package."""

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
"""Macros of mathematical symbols, without the backslash, or the character that replaces them in math mode."""

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
"""Latin letters for Greek capitals that have the same shape and no macro."""

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
"""Combining accents above: the text-mode macro for letters and the math-mode macro for any other base."""

BELOW = {"\u0323": "d", "\u0326": "textcommabelow", "\u0327": "c", "\u0331": "b"}
"""Text-mode macros of combining accents below a letter."""
OGONEK, STROKE = "\u0328", "\u0338"


def escape(text: str) -> str:
    """Return ``text`` escaped for pdflatex; a character without a macro is written as its code point."""
    composed = unicodedata.normalize("NFC", text)
    written = [_written(sign) for sign in composed]
    for place, sign in enumerate(composed):
        # A letter with a combining accent, without a precomposed character in Unicode.
        if (
            place
            and unicodedata.combining(sign)
            and (joined := _accented(written[place - 1], composed[place - 1], sign))
        ):
            written[place - 1 : place + 1] = ["", joined]
        elif sign == "-" and composed[place - 1 : place] == "-":
            written[place] = "{}-"  # prevents the ligature of two hyphens to a dash
    return "".join(written)


def _written(sign: str) -> str:
    found = _macro(sign)
    return f"\\texttt{{U+{ord(sign):04X}}}" if found is None else found


@cache
def _macro(sign: str) -> str | None:
    """Return the LaTeX code of one character, None if there is none."""
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
        return ""  # zero width: joiners, direction marks
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
    """Return the LaTeX code of a character from its Unicode decomposition, None if there is none.

    Decompositions are letters with accents, superscripts, subscripts, circled characters and fractions.
    """
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
    """Return ``base``, the LaTeX code of ``letter``, with a combining mark, None if the mark is not supported."""
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
