"""Our objectives inside verl: advantage estimators and a policy loss, through its plugin hook.

`VERL_USE_EXTERNAL_MODULES=trainer.engines.verl.plugin` makes verl import it in every process. Only
`plugin` imports verl; the rest is pure and works without it. Written for verl 0.9.
"""
