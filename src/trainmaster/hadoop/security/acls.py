"""Access control lists as Hadoop writes them: `user1,user2 group1,group2`, `*` for everybody.

An application's VIEW list names who may see it beside its owner and the administrators, where the cluster has such lists in force
(`yarn.acl.enable`). The rules are those of ApplicationACLsManager and AccessControlList of Hadoop 3.4.2. A user's groups are those that
this machine knows, as with Hadoop's own default mapping.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Collection

import attrs

from trainmaster.hadoop.conf import Configuration

ALL = "*"


def groups_of(user: str) -> list[str]:
    """Return the names of a user's groups on this machine; none for a user that it does not know."""
    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return []
    names = []
    for number in numbers:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:  # a group without a name is in no list
            continue
    return names


@attrs.frozen
class AccessList:
    """A list of users and groups; `everybody`: it has all users."""

    users: frozenset[str]
    groups: frozenset[str]
    everybody: bool = False

    @classmethod
    def parse(cls, text: str) -> AccessList:
        users, _, groups = text.partition(" ")
        return cls(_names(users), _names(groups), text.strip() == ALL)

    def allows(self, user: str, groups: Callable[[str], Collection[str]] = groups_of) -> bool:
        return self.everybody or user in self.users or bool(self.groups and not self.groups.isdisjoint(groups(user)))


def may_view(conf: Configuration, owner: str, view: str, user: str) -> bool:
    """Tell whether YARN lets `user` (empty: nobody was asked for a name) see an application of `owner` with this VIEW list."""
    if not conf.flag("yarn.acl.enable"):
        return True
    if not user:
        return False
    administrators = AccessList.parse(conf.get("yarn.admin.acl"))
    return user == owner or administrators.allows(user) or AccessList.parse(view).allows(user)


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())
