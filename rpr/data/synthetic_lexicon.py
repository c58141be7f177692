"""The words of the synthetic corpus (rpr/data/synthetic.py): tables of forms, and the regular rules that complete them.

Words were chosen so that translation is one-to-one and inflection regular: no weak masculine nouns, no adjectives that
change their stem, every perfect with "haben", no English word with two senses. What is left to learn is order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

Case = Literal["nominative", "accusative", "dative"]
Frame = Literal["none", "accusative", "dative", "double", "to", "clause"]


@dataclass(frozen=True)
class Noun:
    """A noun with both plurals; gender is m, f or n."""

    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str


@dataclass(frozen=True)
class Adjective:
    """German stem: an ending is always added, for adjectives stand before nouns only."""

    english: str
    german: str


@dataclass(frozen=True)
class Determiner:
    """`german` is the stem; `kind` chooses the endings: the (der), this (dies-), or a (ein, mein)."""

    english: str
    english_plural: str | None  # None: singular only
    german: str
    kind: Literal["the", "this", "a"]


@dataclass(frozen=True)
class Pronoun:
    """A third person, or "we", whose verb forms are those of the third person plural."""

    english: str
    english_object: str
    german: dict[Case, str]
    plural: bool


@dataclass(frozen=True)
class Adverb:
    english: str
    german: str


@dataclass(frozen=True)
class Preposition:
    english: str
    german: str
    case: Case


@dataclass(frozen=True)
class Conjunction:
    english: str
    german: str


@dataclass(frozen=True)
class Auxiliary:
    """A finite verb that sends the lexical verb, as participle or infinitive, to the end of the German clause."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    takes: Literal["participle", "infinitive"]


@dataclass(frozen=True)
class Verb:
    """German forms are without the separable particle. `before` and `after` are English words round the object."""

    frame: Frame
    english: str
    english_past: str
    english_participle: str
    before: str
    after: str
    present: str
    past: str
    participle: str
    infinitive: str
    particle: str

    @property
    def english_present(self) -> str:
        """Third person singular."""
        if self.english.endswith(("s", "sh", "ch", "x", "z", "o")):
            return self.english + "es"
        if self.english.endswith("y") and self.english[-2] not in "aeiou":
            return self.english[:-1] + "ies"
        return self.english + "s"

    @property
    def past_plural(self) -> str:
        return self.past + ("n" if self.past.endswith("e") else "en")

    def german_finite(self, tense: str, plural: bool) -> str:
        """Third person; the present plural is the infinitive."""
        if tense == "present":
            return self.infinitive if plural else self.present
        return self.past_plural if plural else self.past


def _rows(table: str) -> list[list[str]]:
    """Rows of words; "_" inside a word is a space."""
    return [[word.replace("_", " ") for word in line.split()] for line in table.strip().splitlines()]


def _verb(row: list[str]) -> Verb:
    """In the column of further English words "~" is the object: "~up" as in called the dog up, "to~" listened to it."""
    frame, base, past, participle, around, *german = row
    before, after = ("", "") if around == "-" else around.split("~")
    present, german_past, german_participle, infinitive, particle = german
    particle = particle.replace("-", "")
    return Verb(
        cast(Frame, frame), base, past, participle, before, after,
        present, german_past, german_participle, infinitive, particle,
    )  # fmt: skip


# One pool of living beings fills every role (subject, object, recipient, inside relative clauses): only order tells who
# does what.
NOUNS = tuple(Noun(*row) for row in _rows("""
    dog         dogs         m  Hund          Hunde
    man         men          m  Mann          Männer
    teacher     teachers     m  Lehrer        Lehrer
    doctor      doctors      m  Arzt          Ärzte
    painter     painters     m  Maler         Maler
    gardener    gardeners    m  Gärtner       Gärtner
    baker       bakers       m  Bäcker        Bäcker
    king        kings        m  König         Könige
    friend      friends      m  Freund        Freunde
    brother     brothers     m  Bruder        Brüder
    son         sons         m  Sohn          Söhne
    father      fathers      m  Vater         Väter
    uncle       uncles       m  Onkel         Onkel
    bird        birds        m  Vogel         Vögel
    wolf        wolves       m  Wolf          Wölfe
    fox         foxes        m  Fuchs         Füchse
    thief       thieves      m  Dieb          Diebe
    guest       guests       m  Gast          Gäste
    judge       judges       m  Richter       Richter
    hunter      hunters      m  Jäger         Jäger
    knight      knights      m  Ritter        Ritter
    servant     servants     m  Diener        Diener
    woman       women        f  Frau          Frauen
    cat         cats         f  Katze         Katzen
    sister      sisters      f  Schwester     Schwestern
    mother      mothers      f  Mutter        Mütter
    daughter    daughters    f  Tochter       Töchter
    aunt        aunts        f  Tante         Tanten
    queen       queens       f  Königin       Königinnen
    princess    princesses   f  Prinzessin    Prinzessinnen
    witch       witches      f  Hexe          Hexen
    nun         nuns         f  Nonne         Nonnen
    duck        ducks        f  Ente          Enten
    goose       geese        f  Gans          Gänse
    cow         cows         f  Kuh           Kühe
    goat        goats        f  Ziege         Ziegen
    mouse       mice         f  Maus          Mäuse
    snake       snakes       f  Schlange      Schlangen
    owl         owls         f  Eule          Eulen
    child       children     n  Kind          Kinder
    girl        girls        n  Mädchen       Mädchen
    horse       horses       n  Pferd         Pferde
    pig         pigs         n  Schwein       Schweine
    calf        calves       n  Kalb          Kälber
    hen         hens         n  Huhn          Hühner
    lamb        lambs        n  Lamm          Lämmer
    rabbit      rabbits      n  Kaninchen     Kaninchen
    squirrel    squirrels    n  Eichhörnchen  Eichhörnchen
    camel       camels       n  Kamel         Kamele
    crocodile   crocodiles   n  Krokodil      Krokodile
    ghost       ghosts       n  Gespenst      Gespenster
    baby        babies       n  Baby          Babys
"""))  # fmt: skip

PLACES = tuple(Noun(*row) for row in _rows("""
    garden   gardens   m  Garten   Gärten
    forest   forests   m  Wald     Wälder
    tower    towers    m  Turm     Türme
    city     cities    f  Stadt    Städte
    church   churches  f  Kirche   Kirchen
    school   schools   f  Schule   Schulen
    kitchen  kitchens  f  Küche    Küchen
    house    houses    n  Haus     Häuser
    village  villages  n  Dorf     Dörfer
    castle   castles   n  Schloss  Schlösser
"""))  # fmt: skip

# Frame: what the verb takes. double: shows the man the dog; to: introduces the dog to the man; clause: says that ...
# "call" and "push" stand twice: a particle behind the object decides what the verb means.
VERBS = tuple(_verb(row) for row in _rows("""
    none        sleep      slept       slept       -      schläft    schlief    geschlafen  schlafen    -
    none        laugh      laughed     laughed     -      lacht      lachte     gelacht     lachen      -
    none        sing       sang        sung        -      singt      sang       gesungen    singen      -
    none        dance      danced      danced      -      tanzt      tanzte     getanzt     tanzen      -
    none        work       worked      worked      -      arbeitet   arbeitete  gearbeitet  arbeiten    -
    accusative  see        saw         seen        -      sieht      sah        gesehen     sehen       -
    accusative  hear       heard       heard       -      hört       hörte      gehört      hören       -
    accusative  love       loved       loved       -      liebt      liebte     geliebt     lieben      -
    accusative  hate       hated       hated       -      hasst      hasste     gehasst     hassen      -
    accusative  find       found       found       -      findet     fand       gefunden    finden      -
    accusative  seek       sought      sought      -      sucht      suchte     gesucht     suchen      -
    accusative  praise     praised     praised     -      lobt       lobte      gelobt      loben       -
    accusative  visit      visited     visited     -      besucht    besuchte   besucht     besuchen    -
    accusative  chase      chased      chased      -      jagt       jagte      gejagt      jagen       -
    accusative  save       saved       saved       -      rettet     rettete    gerettet    retten      -
    accusative  carry      carried     carried     -      trägt      trug       getragen    tragen      -
    accusative  catch      caught      caught      -      fängt      fing       gefangen    fangen      -
    accusative  call       called      called      -      ruft       rief       gerufen     rufen       -
    accusative  push       pushed      pushed      -      stößt      stieß      gestoßen    stoßen      -
    accusative  call       called      called      ~up    ruft       rief       gerufen     rufen       an
    accusative  push       pushed      pushed      ~away  stößt      stieß      gestoßen    stoßen      weg
    accusative  wake       woke        woken       ~up    weckt      weckte     geweckt     wecken      auf
    accusative  pick       picked      picked      ~up    holt       holte      geholt      holen       ab
    accusative  invite     invited     invited     -      lädt       lud        geladen     laden       ein
    accusative  smile      smiled      smiled      at~    lächelt    lächelte   gelächelt   lächeln     an
    dative      help       helped      helped      -      hilft      half       geholfen    helfen      -
    dative      thank      thanked     thanked     -      dankt      dankte     gedankt     danken      -
    dative      trust      trusted     trusted     -      vertraut   vertraute  vertraut    vertrauen   -
    dative      answer     answered    answered    -      antwortet  antwortete geantwortet antworten   -
    dative      listen     listened    listened    to~    hört       hörte      gehört      hören       zu
    double      show       showed      shown       -      zeigt      zeigte     gezeigt     zeigen      -
    double      bring      brought     brought     -      bringt     brachte    gebracht    bringen     -
    double      send       sent        sent        -      schickt    schickte   geschickt   schicken    -
    double      sell       sold        sold        -      verkauft   verkaufte  verkauft    verkaufen   -
    double      offer      offered     offered     -      bietet     bot        geboten     bieten      an
    to          introduce  introduced  introduced  -      stellt     stellte    gestellt    stellen     vor
    to          describe   described   described   -      beschreibt beschrieb  beschrieben beschreiben -
    clause      say        said        said        -      sagt       sagte      gesagt      sagen       -
    clause      believe    believed    believed    -      glaubt     glaubte    geglaubt    glauben     -
    clause      know       knew        known       -      weiß       wusste     gewusst     wissen      -
    clause      hope       hoped       hoped       -      hofft      hoffte     gehofft     hoffen      -
    clause      write      wrote       written     -      schreibt   schrieb    geschrieben schreiben   -
"""))  # fmt: skip

ADJECTIVES = tuple(Adjective(*row) for row in _rows("""
    old        alt
    young      jung
    small      klein
    big        groß
    good       gut
    evil       bös
    beautiful  schön
    ugly       hässlich
    happy      fröhlich
    sad        traurig
    strong     stark
    weak       schwach
    rich       reich
    poor       arm
    clever     klug
    stupid     dumm
    wild       wild
    brave      mutig
    friendly   freundlich
    lazy       faul
    sick       krank
    healthy    gesund
    proud      stolz
    new        neu
    famous     berühmt
    strange    seltsam
"""))  # fmt: skip

THE = Determiner("the", "the", "", "the")
SINGULAR_DETERMINERS = (Determiner("a", None, "ein", "a"), Determiner("every", None, "jed", "this"))
OTHER_DETERMINERS = (Determiner("this", "these", "dies", "this"), Determiner("my", "my", "mein", "a"))

PRONOUNS = (
    Pronoun("he", "him", {"nominative": "er", "accusative": "ihn", "dative": "ihm"}, plural=False),
    Pronoun("she", "her", {"nominative": "sie", "accusative": "sie", "dative": "ihr"}, plural=False),
    Pronoun("they", "them", {"nominative": "sie", "accusative": "sie", "dative": "ihnen"}, plural=True),
    Pronoun("we", "us", {"nominative": "wir", "accusative": "uns", "dative": "uns"}, plural=True),
)

# In English, middle adverbs stand before the lexical verb, edge adverbs first or last in the clause, front ones first.
MIDDLE_ADVERBS = tuple(Adverb(*row) for row in _rows("often oft\nalways immer\nnever nie\nsecretly heimlich"))
EDGE_ADVERBS = tuple(Adverb(*row) for row in _rows("today heute\nhere hier\nthere dort\noutside draußen"))
PAST_EDGE_ADVERBS = (*EDGE_ADVERBS, Adverb("yesterday", "gestern"), Adverb("recently", "neulich"))
NONPAST_EDGE_ADVERBS = (*EDGE_ADVERBS, Adverb("now", "jetzt"))
FRONT_ADVERBS = tuple(Adverb(*row) for row in _rows("perhaps vielleicht\nunfortunately leider\nsuddenly plötzlich"))

# "in" meets "dem" as "im"; the others never contract in writing.
PLACE_PREPOSITIONS = (
    Preposition("in", "in", "dative"),
    Preposition("behind", "hinter", "dative"),
    Preposition("in front of", "vor", "dative"),
    Preposition("next to", "neben", "dative"),
)
NOUN_PREPOSITIONS = (Preposition("with", "mit", "dative"), Preposition("without", "ohne", "accusative"))

THAT = Conjunction("that", "dass")
SUBORDINATORS = tuple(Conjunction(*row) for row in _rows(
    "because weil\nwhile während\nalthough obwohl\nbefore bevor\nif wenn\nuntil bis\nas_soon_as sobald"
))  # fmt: skip
COORDINATORS = (Conjunction("and", "und"), Conjunction("but", "aber"))

NONPAST_AUXILIARIES = (
    Auxiliary("has", "have", "hat", "haben", "participle"),
    Auxiliary("can", "can", "kann", "können", "infinitive"),
    Auxiliary("must", "must", "muss", "müssen", "infinitive"),
    Auxiliary("will", "will", "wird", "werden", "infinitive"),
)
PAST_AUXILIARIES = (
    Auxiliary("had", "had", "hatte", "hatten", "participle"),
    Auxiliary("could", "could", "konnte", "konnten", "infinitive"),
)

# Columns: masculine, feminine, neuter, plural.
THE_FORMS: dict[Case, tuple[str, ...]] = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
}
RELATIVE_PRONOUNS: dict[Case, tuple[str, ...]] = {**THE_FORMS, "dative": ("dem", "der", "dem", "denen")}
THIS_ENDINGS: dict[Case, tuple[str, ...]] = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
A_ENDINGS: dict[Case, tuple[str, ...]] = {
    **THIS_ENDINGS,
    "nominative": ("", "e", "", "e"),
    "accusative": ("en", "e", "", "e"),
}
ADJECTIVE_ENDINGS: dict[Case, tuple[str, ...]] = {  # after the, this, every
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
}
ADJECTIVE_ENDINGS_AFTER_A: dict[Case, tuple[str, ...]] = {
    **ADJECTIVE_ENDINGS,
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
}
