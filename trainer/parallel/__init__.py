"""One run in many processes: replicas (`ddp`) or shards (`fsdp`) of the policy under `torchrun`.

Promises (tests/trainer/parallel/):

1. Gradients are summed over ranks and losses are divided by the counts of all ranks, so a step is
   that of one process, however unequally the turns are spread.
2. Rollouts are keyed, so those of all ranks together are those of one process.
3. A rank without rows takes part in every step and holds nobody up.
4. Ranks that wait for one that failed end with its message.
5. Rank 0 writes the run folder, in the form that a single process writes and reads.
"""
