"""Keep running while the other members of the role come and go.

Members meet at a rendezvous, and the master forms them into rounds. A round has fixed members in order of rank, and lasts until one of them
is lost, or leaves: the master tells the others at once, in the middle of whatever they do. Then they join again, with the last step that
each has completed. While somebody else waits to come in, members hear that they are wanted, and leave at their next boundary.

    from trainmaster.runtime import elastic

    rendezvous = elastic.Rendezvous(heard=lambda word, number: ...)
    meeting = rendezvous.join(payload="port 4000", step=0)
    meeting.rank, meeting.size, [member.address for member in meeting.members]

This module needs the standard library alone. `elastic.torch_training` trains PyTorch's models in such rounds, `elastic.keras_training`
Keras models; a program imports them by name.
"""

from __future__ import annotations

from .rendezvous import BROKEN as BROKEN
from .rendezvous import WANTED as WANTED
from .rendezvous import Rendezvous
from .rounds import Member, Round

__all__ = ["Member", "Rendezvous", "Round"]
