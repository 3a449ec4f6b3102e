"""Sets of questions in the form of FANToM, and their right answers."""


def fantom_set(number, draw):
    people = draw.sample(["Ana", "Bo", "Cem", "Dora", "Ed"], 4)
    away = people[: draw.randint(0, 2)]
    scenario = "inaccessible" if away else "accessible"
    here = [p for p in people if p not in away]
    both = {"missed_info_accessibility": scenario}
    beliefs = [
        {
            "question": f"What does {p} believe about the plan?",
            "correct_answer": f"{p} does not know.",
            "wrong_answer": f"{p} thinks it is set.",
            "question_type": f"tom:belief:{scenario}",
            "tom_type": "first-order" if i else "second-order:cyclic",
        }
        | both
        for i, p in enumerate(people[:2])
    ]

    def family(kind, verb):
        listed = {
            "question": f"List all who {verb}.",
            "correct_answer": here,
            "wrong_answer": away,
            "question_type": f"tom:{kind}:list",
        } | both
        return listed, [
            {
                "question": f"Does {p} know {verb}?",
                "correct_answer": "yes" if p in here else draw.choice(["no", "no:long"]),
                "question_type": f"tom:{kind}:binary",
            }
            | both
            for p in people
        ]

    answers, infos = family("answerability", "the answer"), family("info_accessibility", "this")
    return {
        "set_id": f"{number // 4}-{number // 2 % 2}-{number}",
        "short_context": f"Talk {number}.",
        "full_context": f"Long talk {number}.",
        "beliefQAs": beliefs,
        "factQA": {
            "question": "What is the plan?",
            "correct_answer": "to sail at noon",
            "question_type": "fact",
        },
        "answerabilityQA_list": answers[0],
        "answerabilityQAs_binary": answers[1],
        "infoAccessibilityQA_list": infos[0],
        "infoAccessibilityQAs_binary": infos[1],
    }


def right_answer(item):
    return (
        ", ".join(item.gold)
        if isinstance(item.gold, list)
        else "no"
        if item.gold == "no:long"
        else item.gold
    )
