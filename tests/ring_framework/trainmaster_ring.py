"""Ring: each program gets its place, and the address of the next program."""

from trainmaster.frameworks.contract import Placement, texts


def ports(role, job):
    return ("ring",) if role.counts else ()


def environment(formation, task):
    me = formation.by_task[task]
    if me.rank is None:
        return Placement()
    ring, place = formation.ranked, me.rank.group_rank
    following = ring[(place + 1) % len(ring)]
    return Placement(texts({"RING_PLACE": place, "RING_SIZE": len(ring), "RING_NEXT": following.at("ring")}))
