"""Many runs and many breakdowns: what a p value is adjusted for."""

from humanlm.benchmarks.protocol import Difference
from humanlm.harness.reports import adjusted, comparison_table


def line(group, value, p):
    return Difference("accuracy", group, value, 20, 20, 0.5, 0.7, 0.2, 0.1, 0.3, 1, 5, p)


def test_p_values_of_a_breakdown_are_adjusted_over_all_runs_that_were_compared():
    one, other = (
        [line("", "", 0.02), line("order", "1", 0.01), line("order", "2", 0.04)],
        [line("", "", 0.03), line("order", "1", 0.5), line("order", "2", 0.9)],
    )
    alone = adjusted(one)
    assert [round(alone[d], 3) for d in one] == [0.02, 0.02, 0.04]
    both = adjusted(one + other)
    assert [round(both[d], 3) for d in one + other] == [0.04, 0.04, 0.12, 0.04, 1.0, 1.0]
    table = comparison_table(one, one + other)
    assert "p by story (Holm)" in table and "0.120" in table and "0.010" not in table
    assert "Holm" not in comparison_table(one[:1])
