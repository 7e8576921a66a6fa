"""Another number of servers, while training goes on.

Server 0 begins a move by an entry of the order, `moving`, once there are newcomers, or servers that must leave. The owners of the next
placement connect to all present servers, and get from each what they will own of it: its share as it was at that entry (`sending`), and
then each push that it takes, as its log has it. So an owner holds what it would have restored from a checkpoint and the logs after it
(`receiving`). When all have caught up, server 0 adds `placed`, the last entry of the present placement; after `placed` they serve in the
next one. Workers hear of that, and send again what was not in order yet, under the same names: nothing is lost, nothing doubled.

As long as `placed` is not in the order, a failure ends the move alone: the present placement has everything. After `placed`, until the
first checkpoint of the next placement, the logs of the present one have everything, and no push is taken.
"""
