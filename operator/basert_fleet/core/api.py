"""The one schema: BasertPool, Standalone and BasertWorker, as fleet files, Kubernetes and the rooms share them.

Decides which settings exist, their bounds and their defaults; every description says what happens when one changes.
A setting is in here only if some code honours it, and an unknown one is refused. Where a document stands in a file is
told by `cli.fleetfile`, what follows from it by `plan`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from basert_fleet.core.delivery import VerifyMode
from basert_fleet.core.server_address import NoServerAddress, server_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core.core_schema import ValidationInfo

GROUP = "fleet.basert.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
"""No control characters: such a value ends up in a header, a log line or an argument list."""

QUANTITY = re.compile(r"(?P<number>[0-9]{1,19}(\.[0-9]{1,9})?)(?P<unit>Ki|Mi|Gi|Ti|k|M|G|T)?")
UNITS: Mapping[str | None, int] = MappingProxyType({
    None: 1,
    "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
    "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4,
})  # fmt: skip


def parse_quantity(value: object) -> int:
    """Return the bytes that a Kubernetes-style quantity stands for: `24Gi`, `1.5G`, `512Mi`, `1048576`.

    A fraction of a byte is rounded up, as Kubernetes does.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("quantity", "should be a quantity of bytes, such as 24Gi, 512Mi, 8G or 1048576")
    return math.ceil(Fraction(match["number"]) * UNITS[match["unit"]])


def format_quantity(size: int) -> str:
    """Return bytes as a person would write them: the largest binary unit that leaves no fraction."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


Count: TypeAlias = Annotated[int, Strict()]
"""An integer that is written as one: neither "3" nor true counts."""
Switch: TypeAlias = Annotated[bool, Strict()]
Quantity: TypeAlias = Annotated[
    int,
    BeforeValidator(parse_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": f"^{QUANTITY.pattern.replace('?P<number>', '').replace('?P<unit>', '')}$",
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""Bytes; read from a quantity, written as a plain number."""
Name: TypeAlias = Annotated[str, Field(pattern=PRINTABLE, max_length=256)]


class ApiModel(BaseModel):
    """What all documents have in common: camelCase outside, frozen inside, and no key that nobody honours."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


def without_repeats(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a list that names something twice."""
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise PydanticCustomError("repeated", "should not repeat {names}", {"names": ", ".join(repeated)})
    return values


# --- The command line -------------------------------------------------------------------------------------------------

FLAGS_OF_THE_FLEET: Mapping[str, str] = MappingProxyType(
    {
        "--model": "set spec.model.path instead",
        "--max-context": "set spec.server.maxContext instead",
        "--request-timeout": "set spec.server.requestTimeoutSeconds instead",
        "--host": "workers always listen on loopback",
        "--port": "the agent picks a free port for each worker",
        "--api-key": "the agent makes a random key for each process",
    }
)
"""Flags that every worker gets from the fleet, and what to do instead of giving them."""

UNSAFE_FLAGS = frozenset({"--continuous-batching", "--prefix-cache", "--prefix-cache-file", "--paged-kv"})
"""Flags that share attention state or forward passes between requests (basert-serve's documentation)."""

BATCH_FLAG = "--max-batch-size"
"""Unsafe above 1: one process would then run several generations together."""


def unsafe_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line that let one request's state reach another's.

    A `--max-batch-size` whose value cannot be read counts as unsafe.
    """
    found = []
    for position, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in UNSAFE_FLAGS:
            found.append(word)
        elif flag == BATCH_FLAG:
            size = value if equals else "".join(words[position + 1 : position + 2])
            if size != "1":
                found.append(word if equals else f"{word} {size}".rstrip())
    return tuple(found)


def refuse_flags(words: tuple[str, ...], *, allow_unsafe: bool) -> tuple[str, ...]:
    """Refuse flags that the fleet sets itself and, unless they were allowed by name, unsafe ones."""
    for word in words:
        flag = word.partition("=")[0]
        if flag in FLAGS_OF_THE_FLEET:
            raise PydanticCustomError(
                "fleet_flag", "should not set {flag}: {instead}", {"flag": flag, "instead": FLAGS_OF_THE_FLEET[flag]}
            )
    unsafe = () if allow_unsafe else unsafe_flags(words)
    if unsafe:
        raise PydanticCustomError(
            "unsafe_flag",
            "should not contain {flags}: it shares state between requests, so one user's tool call may carry "
            "another's arguments. Leave it out; spec.server.allowUnsafeFlags: true lifts this check, not the danger",
            {"flags": ", ".join(unsafe)},
        )
    return words


# --- BasertPool -------------------------------------------------------------------------------------------------------


class Metadata(ApiModel):
    """How a document is called."""

    name: str = Field(
        pattern=DNS_LABEL,
        max_length=40,
        description="The document's name: lower-case letters, digits and `-`, at most 40 (workers append a number). "
        "Another name is another pool: the old one's workers are drained and stopped.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Free labels for people and tools; none acts.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Free notes for people and tools; none acts.")


class ModelSpec(ApiModel):
    """What the pool serves."""

    name: Name = Field(
        description="The model name by which clients choose this pool, and /v1/models lists; unique in the fleet. "
        "A change takes effect at once and restarts nothing; clients that use the old name get model_not_found.",
    )
    aliases: Annotated[tuple[Name, ...], Field(max_length=32)] = Field(
        default=(),
        description="More names for the same model, e.g. the one a client has built in. Unique in the fleet; a change "
        "restarts nothing.",
    )
    path: Name = Field(
        description="The model file or folder on the Mac, as basert-serve takes it. A change replaces every worker, "
        "update.maxUnavailable at a time.",
    )

    _distinct = field_validator("aliases")(without_repeats)

    @field_validator("aliases")
    @classmethod
    def _no_alias_is_the_name(cls, aliases: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("name") in aliases:
            raise PydanticCustomError("repeated", "should not repeat the model's own name")
        return aliases

    @field_validator("path")
    @classmethod
    def _path_is_no_flag(cls, path: str) -> str:
        if path.startswith("-"):
            raise PydanticCustomError("path", "should not start with `-`: basert-serve would take it for a flag")
        return path


class EnvVar(ApiModel):
    """One environment variable of a worker's process."""

    name: str = Field(pattern=ENV_NAME, max_length=256, description="The variable's name.")
    value: str = Field(max_length=32_768, description="Its value, as a string: quote numbers and true or false.")


class ChatMode(StrEnum):
    """Who turns the messages of a chat into the prompt that the model reads."""

    NATIVE = "native"
    RENDERED = "rendered"


class ToolDialect(StrEnum):
    """How the model writes a tool call into its text."""

    AUTO = "auto"
    QWEN = "qwen"
    HERMES = "hermes"


class ChatTemplateSpec(ApiModel):
    """Where the chat template of a rendered pool is."""

    file: Name = Field(
        description="A Jinja chat template on the Mac, read when a process starts; editing it changes nothing before "
        "the next start. A relative path starts where `up` or `agent` was started. It is trusted as the model is. "
        "Without it, the one beside model.path is used: "
        "chat_template.jinja, else chat_template in tokenizer_config.json.",
    )


class ServerSpec(ApiModel):
    """How each worker's process is started. Every change replaces the workers, update.maxUnavailable at a time."""

    allow_unsafe_flags: Switch = Field(
        default=False,
        description="Let command and args contain flags that share state between requests. True gives up the promise "
        "that no request sees another's arguments; for experiments with an engine you trust. The flag alone restarts "
        "nothing.",
    )
    command: Annotated[tuple[Name, ...], Field(min_length=1, max_length=64)] = Field(
        default=("basert-serve",),
        description="The program and its first words; found on the agent's PATH unless it is a path. The fleet appends "
        "model.path, its own flags, then args.",
    )
    args: Annotated[tuple[Name, ...], Field(max_length=256)] = Field(
        default=(), description="More flags for basert-serve. Those that the fleet sets itself are refused."
    )
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256)] = Field(
        default=(), description="Environment variables, added to the agent's own. Not a place for secrets."
    )
    max_context: Count = Field(
        default=4096,
        ge=1,
        le=16_777_216,
        description="Tokens of prompt and answer together that one request may use. Raising it costs memory in every "
        "worker and allows longer prefills, during which that worker serves nobody else.",
    )
    request_timeout_seconds: Count = Field(
        default=600,
        ge=1,
        le=86_400,
        description="Seconds a request may take in total, waiting not counted. Raise it for long prompts: the first "
        "token of a full context may take many minutes. Higher lets one stuck request hold its worker for longer.",
    )
    chat: ChatMode = Field(
        default=ChatMode.NATIVE,
        description="`native` lets basert-serve render chats and read tool calls. `rendered` does both outside of it "
        "and sends the prompt to /v1/completions, the path that the bug report found safe under a lock. It needs the "
        "model's chat template and takes no images, response_format or logprobs; see docs/rendered.md.",
    )
    chat_template: ChatTemplateSpec | None = Field(
        default=None, description="Another chat template than the model's own; only with chat: rendered."
    )
    tool_dialect: ToolDialect = Field(
        default=ToolDialect.AUTO,
        description="How the model writes tool calls; only with chat: rendered. `auto` finds it in the template. "
        "`qwen` is Qwen3-Coder's and Qwen3.6's XML, `hermes` is JSON between tool_call tags (Hermes, Qwen2.5, Qwen3). "
        "The wrong one delivers calls as plain text, and fails the canary.",
    )

    @field_validator("chat_template", "tool_dialect")
    @classmethod
    def _only_where_rendered(cls, value: object, info: ValidationInfo) -> object:
        if info.data.get("chat") is ChatMode.NATIVE and value not in (None, ToolDialect.AUTO):
            raise PydanticCustomError(
                "native", "should not be set unless server.chat is rendered: nothing would use it"
            )
        return value

    @field_validator("command", "args")
    @classmethod
    def _flags_are_allowed(cls, words: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return refuse_flags(words, allow_unsafe=info.data.get("allow_unsafe_flags", False))

    @field_validator("env")
    @classmethod
    def _variables_are_distinct(cls, env: tuple[EnvVar, ...]) -> tuple[EnvVar, ...]:
        without_repeats(tuple(variable.name for variable in env))
        return env


class ResourcesSpec(ApiModel):
    """What one worker needs of its Mac."""

    memory: Quantity | None = Field(
        default=None,
        gt=0,
        description="Memory that one worker takes, weights and context together, e.g. 24Gi. Workers are placed only "
        "where that much is left. Without it, or where a Mac cannot tell its memory, nothing limits the placement. "
        "A change replaces the workers.",
    )


class IsolationLevel(StrEnum):
    """How much is done to keep one request's state from the next."""

    VERIFY = "verify"
    SCRUB = "scrub"


class DriftAction(StrEnum):
    """What a drift of a slot's counters leads to."""

    RECYCLE = "recycle"
    CONFIRM = "confirm"


class CanaryProfile(StrEnum):
    """Which known request proves that a slot is isolated."""

    TOOL_CALL = "toolCall"
    NONE = "none"


class DriftSpec(ApiModel):
    """When a slot's position counter is too far from where its tokens put it."""

    action: DriftAction = Field(
        default=DriftAction.RECYCLE,
        description="`recycle` replaces a drifted worker at once. `confirm` lets a scrub and a canary decide: fewer "
        "restarts, but a canary may miss the fault. The response of the drifted request is run elsewhere either way.",
    )
    tolerance_tokens: Count = Field(
        default=2,
        ge=0,
        le=64,
        description="Tokens of drift that are still taken for normal; the known fault shows 128. Higher hides small "
        "drifts; 0 may recycle workers of a healthy build.",
    )


class CanarySpec(ApiModel):
    """When a worker must prove, by a known tool call, that its slot is still isolated."""

    profile: CanaryProfile = Field(
        default=CanaryProfile.TOOL_CALL,
        description="`toolCall` asks for one known tool call. `none` sends no canaries: for models without tools; then "
        "only the slot's counters and the responses themselves can show a fault.",
    )
    every_requests: Count = Field(
        default=50,
        ge=1,
        le=100_000,
        description="Requests after which a canary is due. Lower finds contamination sooner and costs one short "
        "generation each time.",
    )
    every_seconds: Count = Field(
        default=300,
        ge=10,
        le=86_400,
        description="Seconds a slot may stay idle before a canary takes it. Lower finds contamination sooner and costs "
        "one short generation each time.",
    )


class IsolationSpec(ApiModel):
    """How the pool makes sure that one request's state never reaches the next. A change restarts nothing."""

    level: IsolationLevel = Field(
        default=IsolationLevel.VERIFY,
        description="`verify` judges every lease and sends canaries. `scrub` also runs one cheap plain request after "
        "each lease, so that two tool requests never follow each other on a slot; it costs a short generation per "
        "request.",
    )
    require_slots: Switch = Field(
        default=True,
        description="Whether a worker must answer /slots. False serves builds without it: what cannot be verified is "
        "then delivered with the verdict `unverifiable`, and a cancelled request costs the worker's process.",
    )
    settle_seconds: Count = Field(
        default=10,
        ge=1,
        le=300,
        description="Seconds after a response's end, or a cancel, in which the slot must be proven idle; else the "
        "process is killed. Higher spares a slow engine a restart and keeps a doubtful slot out of service for longer.",
    )
    drift: DriftSpec = Field(default_factory=DriftSpec)
    canary: CanarySpec = Field(default_factory=CanarySpec)


class DeliverySpec(ApiModel):
    """What of a response waits until its slot was judged. A change concerns the requests after it."""

    verify: VerifyMode = Field(
        default=VerifyMode.TOOL_CALLS,
        description="`toolCalls` streams text at once and holds tool calls until the slot was judged. `full` holds "
        "everything: nothing unjudged is ever seen, and nothing streams. `off` holds nothing. A request may ask for "
        "more with the header x-basert-verify, never for less.",
    )
    max_attempts: Count = Field(
        default=3,
        ge=1,
        le=10,
        description="How often a request may run in all when workers fail or are found contaminated. Higher saves more "
        "requests on a bad day, and lets each of them take more of the fleet.",
    )


class QueueSpec(ApiModel):
    """How many requests may wait for a worker. A change concerns the requests after it."""

    max_requests: Count = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Requests that may wait; one more gets 429 queue_full. Higher turns refusals into longer waits.",
    )
    max_bytes: Quantity = Field(
        default=256 * 1024**2,
        ge=1024**2,
        le=64 * 1024**3,
        description="Bytes of waiting requests' bodies together, which the gateway keeps in memory; beyond it 429 "
        "queue_full.",
    )
    max_wait_seconds: Count = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Seconds a request may wait; then 503 queue_timeout. A client may ask for less with the header "
        "x-basert-max-wait.",
    )


class UpdateSpec(ApiModel):
    """How a change reaches the running workers."""

    max_unavailable: Count = Field(
        default=1,
        ge=1,
        le=1000,
        description="Ready workers that a rollout may take down at once. Higher ends sooner and leaves fewer workers "
        "to serve meanwhile; as many as there are replicas means an interruption.",
    )


class PoolSpec(ApiModel):
    """What a pool should be."""

    model: ModelSpec
    replicas: Count = Field(
        default=1,
        ge=0,
        le=1000,
        description="Workers of this pool; each serves one request at a time. Raising it needs memory for each. "
        "Lowering it drains before it stops, the not ready and the newest first. At 0 requests get no_capacity.",
    )
    server: ServerSpec = Field(default_factory=ServerSpec)
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    isolation: IsolationSpec = Field(default_factory=IsolationSpec)
    delivery: DeliverySpec = Field(default_factory=DeliverySpec)
    queue: QueueSpec = Field(default_factory=QueueSpec)
    update: UpdateSpec = Field(default_factory=UpdateSpec)


class BasertPool(ApiModel):
    """One model, served by interchangeable workers behind one queue."""

    api_version: Literal["fleet.basert.dev/v1alpha1"] = Field(description="The version of this schema.")
    kind: Literal["BasertPool"] = Field(description="What this document is.")
    metadata: Metadata
    spec: PoolSpec


# --- Standalone -------------------------------------------------------------------------------------------------------


class StandaloneMetadata(ApiModel):
    """How the document is called; a file holds one at most, so nothing depends on it."""

    name: str = Field(default="standalone", pattern=DNS_LABEL, max_length=40, description="Free; it names nothing.")


class AttachSpec(ApiModel):
    """One server that something else runs, as one worker of a pool. Its promises are weaker: see docs/attach.md."""

    pool: str = Field(
        pattern=DNS_LABEL,
        max_length=40,
        description="The pool it serves. All workers of that pool are attached servers, so its `replicas` is how many "
        "entries name it, and settings that only matter to a process of the fleet's own are refused in it. What "
        "`server` says of requests holds: requestTimeoutSeconds, and chat with chatTemplate and toolDialect.",
    )
    url: str = Field(
        max_length=256,
        description="Where it listens: http://127.0.0.1:PORT, or another name of this machine. No other entry and no "
        "port of the fleet's own may be the same port.",
    )
    api_key_file: Name | None = Field(
        default=None,
        description="A file that holds the server's --api-key and nothing else, read once at the start; a relative "
        "path starts where `up` was started. Without it no key is sent.",
    )
    restart_command: Annotated[tuple[Name, ...], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="The program and its words that replace the server by a fresh process; it returns once that is "
        "under way. Run, without a shell, whenever a process of the fleet's own would be killed. Without it the worker "
        "is out of service until you restart the server, or for a missing proof until /slots gives it.",
    )

    @field_validator("url")
    @classmethod
    def _url_is_a_server_of_this_machine(cls, url: str) -> str:
        try:
            server_address(url)
        except NoServerAddress as error:
            raise PydanticCustomError("server_url", "{why}", {"why": str(error)}) from None
        return url


class StandaloneSpec(ApiModel):
    """What only a fleet of one machine has. Read at the start: a change is refused until `up` is started again."""

    attach: Annotated[tuple[AttachSpec, ...], Field(min_length=1, max_length=256)] = Field(
        description="Servers that something else runs, each as one worker of a pool."
    )


class Standalone(ApiModel):
    """What a file for `basert-fleet up` may hold beside its pools; never a Kubernetes resource."""

    api_version: Literal["fleet.basert.dev/v1alpha1"] = Field(description="The version of this schema.")
    kind: Literal["Standalone"] = Field(description="What this document is.")
    metadata: StandaloneMetadata = Field(default_factory=StandaloneMetadata)
    spec: StandaloneSpec


# --- BasertWorker -----------------------------------------------------------------------------------------------------


class WorkerState(StrEnum):
    """What a worker is asked to be."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    """Drained first, then stopped; the agent keeps nothing of it."""


class WorkerMetadata(ApiModel):
    """How a worker is called: `<pool>-<index>`, so that making it twice is a conflict and not a second worker."""

    name: str = Field(pattern=DNS_LABEL, max_length=63, description="The worker's name, and its slot's.")


class WorkerSpec(ApiModel):
    """What one worker should be. Written by the planner only."""

    pool: str = Field(description="The pool it serves.")
    node: str = Field(description="The node it lives on; a worker never moves.")
    state: WorkerState
    template: str = Field(description="The template_hash of model, server and resources: another one, another process.")
    model: ModelSpec
    server: ServerSpec
    resources: ResourcesSpec
    isolation: IsolationSpec


class BasertWorker(ApiModel):
    """One slot: one process on one node, as the planner wants it."""

    api_version: Literal["fleet.basert.dev/v1alpha1"] = Field(default="fleet.basert.dev/v1alpha1")
    kind: Literal["BasertWorker"] = Field(default="BasertWorker")
    metadata: WorkerMetadata
    spec: WorkerSpec


def template_hash(spec: PoolSpec | WorkerSpec) -> str:
    """Return a short, stable hash of what only a new process can honour: path, command line, environment, memory.

    Names, isolation and delivery are left out: a running worker takes a change of them as it is. How chats are rendered
    is in it, for a process must prove itself in the way in which it is used; a pool that renders none keeps the hash
    that versions without that setting gave it.
    """
    rendering = {"chat", "chat_template", "tool_dialect"} if spec.server.chat is ChatMode.NATIVE else set()
    server = spec.server.model_dump(mode="json", exclude={"allow_unsafe_flags", *rendering})
    template: dict[str, Any] = {
        "path": spec.model.path,
        "server": server,
        "resources": spec.resources.model_dump(mode="json"),
    }
    canonical = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
