"""Scores of texts with reasons: judges, audits of judges, text similarity, rewards.

Start with `nbs/20_rewards.ipynb`."""

from typing import TYPE_CHECKING

from ..core.plugins import lazy_names

if TYPE_CHECKING:
    from .judge_settings import JudgeConfig, make_judge
    from .reward import AlignmentReward, RewardConfig
    from .scoring import Judge, JudgeRequest, score_group, score_groups
    from .texts import text_scores

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "judge_settings": ["JudgeConfig", "make_judge"],
        "reward": ["AlignmentReward", "RewardConfig"],
        "scoring": ["Judge", "JudgeRequest", "score_group", "score_groups"],
        "texts": ["text_scores"],
    },
)
