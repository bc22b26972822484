"""The most that accounts and groups may hold of the machine's GPUs at once: the words of GPUQuota, in a file.

    accounts:
      ann: {limits: [{gpus: 2, memory: 64Gi}]}
      "*": {limits: [{gpus: 1}]}        # every account that is not named
    groups:
      students: {limits: [{gpus: 2, model: H100}]}   # all of its members together

Nothing bounds root and the engine's own account.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.kube.custom import GPUQuotaSpec, ModelQuota
from aliquot.kube.manifest import read_yaml_file
from aliquot.kube.quotas import bound
from aliquot.lib.decoding import convert_to
from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity
from aliquot.model.requests import GpuRequest, Plan
from aliquot.model.validation import sentence
from aliquot.placement.machine import MachineLedger, NeverFits, NoRoom
from aliquot.placement.quota import Quota, added
from aliquot.placement.sentences import over_quota, within_quota
from aliquot.standalone.accounts import Account

NONE: Final[Mapping[str, list[Quota]]] = {}
OTHERS: Final = "*"
_KNOWN: Final = {"account": pwd.getpwnam, "group": grp.getgrnam}


class BadQuotaFile(UserError):
    """The file of quotas says something that cannot be."""


class OverQuota(NoRoom):
    """The account, or a group of it, would hold more than its quota until some of that ends."""


class _Limit(ModelQuota, forbid_unknown_fields=True):
    """One bound, as a person writes it."""


class _Entry(GPUQuotaSpec, forbid_unknown_fields=True):
    """The bounds of an account or a group, as a person writes them: a misspelt one is refused, and not no bound."""

    limits: list[_Limit] = []  # type: ignore[assignment]  # noqa: RUF012 (msgspec gives each struct a list of its own)


class AccountQuotas:
    """All quotas of a machine, by account and by group."""

    def __init__(self, accounts: Mapping[str, list[Quota]] = NONE, groups: Mapping[str, list[Quota]] = NONE) -> None:
        self._accounts = accounts
        self._groups = groups

    @classmethod
    def read(cls, file: Path) -> AccountQuotas:
        """The quotas of a file.

        Raises:
            BadYaml, BadQuotaFile: it cannot be read, or one of its entries is none.
        """
        document: Any = read_yaml_file(file)
        if not isinstance(document, dict) or not document or document.keys() - {"accounts", "groups"}:
            raise BadQuotaFile(f"{file}: a file of quotas has accounts: and groups:, each a map from names to limits")
        found: dict[str, dict[str, list[Quota]]] = {"accounts": {}, "groups": {}}
        for part, entries in document.items():
            if not isinstance(entries, dict):
                raise BadQuotaFile(f"{file}: {part} is no map from names to limits")
            for name, entry in entries.items():
                found[part][str(name)] = _entry(f"{file}: {part}.{name}", part.removesuffix("s"), str(name), entry)
        return cls(found["accounts"], found["groups"])

    def require(
        self, ledger: MachineLedger, owner: Account, owners: Iterable[Account], plan: Plan, request: GpuRequest,
        held: Plan,
    ) -> None:  # fmt: skip
        """Let a plan pass that keeps its account and the groups of that within quota; `owners` are all that hold some.

        The tenant has `held` in the ledger; only what it is to have beyond that is more.

        Raises:
            OverQuota: it has to wait, or to ask for less.
            NeverFits: it asks for more than the quota alone.
        """
        if owner.is_master:
            return
        accounts = [owner, *owners]
        for kind, name, quotas, members in self._of(owner, accounts):
            used = [ledger.cluster.usage(member) for member in members]
            exclusive = bool(request.labels.exclusion)
            asked = added(ledger.cluster, owner.name, plan.slices, exclusive=exclusive)
            has = added(ledger.cluster, owner.name, held.slices, exclusive=exclusive)
            more = {
                model: (max(0, milli - has.get(model, (0, 0))[0]), max(0, mib - has.get(model, (0, 0))[1]))
                for model, (milli, mib) in asked.items()
            }
            for quota in quotas:
                forbidden = quota.forbidden(request.labels)
                if excess := forbidden or quota.excess(used, more, whole=exclusive):
                    text = over_quota(replace(excess, namespace=name, kind=kind))
                    if forbidden or quota.excess((), asked, whole=False):
                        raise NeverFits(f"{text}; ask for less")
                    raise OverQuota(f"{text}; {within_quota(excess)}. See who holds it: aliquot get tenants")

    def _of(self, owner: Account, accounts: list[Account]) -> Iterator[tuple[str, str, list[Quota], set[str]]]:
        """What bounds an account: "account" or "group", its name, the bounds, and the names of whose holdings count."""
        known = [name for name in (owner.name, str(owner.uid), OTHERS) if name in self._accounts]
        if known:
            yield "account", owner.name, self._accounts[known[0]], {owner.name}
        for group, quotas in self._groups.items():
            number = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
            members = {each.name for each in accounts if number in (each.gid, *each.groups)}
            if owner.name in members:
                yield "group", group, quotas, members


def _entry(where: str, kind: str, name: str, entry: Any) -> list[Quota]:
    """The bounds of one account or group."""
    if name != OTHERS and not name.isdecimal():
        try:
            _KNOWN[kind](name)
        except KeyError:
            missing = f'there is no {kind} "{name}" on this machine'
            raise BadQuotaFile(f"{where}: {missing}; write its name or its number") from None
    try:
        spec = convert_to(_Entry, entry)
        quotas = [Quota(name, forbids=tuple(spec.forbid))] if spec.forbid else []
        quotas += [bound(limit, name) for limit in spec.limits]
    except msgspec.ValidationError as error:
        raise BadQuotaFile(f"{where}: {sentence(error, entry, _Entry, called='a quota')}") from None
    except BadQuantity as error:
        raise BadQuotaFile(f"{where}: {error}") from None
    if spec.cohort or any(limit.nominal_gpus is not None or limit.nominal_memory is not None for limit in spec.limits):
        raise BadQuotaFile(f"{where}: cohort and nominal quotas are for namespaces of a cluster; write gpus and memory")
    if not quotas:
        raise BadQuotaFile(f"{where} bounds nothing; write limits: [{{gpus: 2, memory: 64Gi}}], or one of the two")
    return quotas
