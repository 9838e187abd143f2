"""What is played of a command: how long it runs, and how it ends."""

import pytest

from gpuplane.sandbox.node.programs import SECONDS_OF_A_JOB, PlayedCommand, PlayedProgram, played_command

FOR_EVER, JOB = PlayedCommand(None), PlayedCommand(SECONDS_OF_A_JOB)


@pytest.mark.parametrize(
    ("words", "of_a_job"),
    [
        ([], JOB),
        (["nvidia-smi", "-L"], JOB),
        (["sleep", "3"], PlayedCommand(3.0)),
        (["/bin/sleep", "1m", "2s"], PlayedCommand(62.0)),
        (["sleep", "infinity"], FOR_EVER),
        (["true"], PlayedCommand(0.0)),
        (["/bin/false"], PlayedCommand(0.0, 1)),
        (["tail", "-f", "/dev/null"], FOR_EVER),
        (["sh", "-c", "exit 3"], PlayedCommand(0.0, 3)),
        (["bash", "-ec", "nvidia-smi; sleep 2 && exit 1"], PlayedCommand(2.0, 1)),
        (["sh", "-c", "echo started; sleep 1; sleep 2"], PlayedCommand(3.0)),
        (["sh", "-c", "while true; do nvidia-smi; sleep 5; done"], FOR_EVER),
        (["bash", "-c", "nvidia-smi -L; trap 'exit 0' TERM; sleep 9999 & wait"], PlayedCommand(9999.0)),
        (["sh", "-c", "echo 'it is' \"broken"], JOB),
        (["sh", "/script.sh"], JOB),
    ],
)
def test_a_command_says_how_long_it_runs(words: list[str], of_a_job: PlayedCommand) -> None:
    assert played_command({"name": "a", "command": words}, runs_on=False) == of_a_job
    assert played_command({"name": "a", "command": words[:1], "args": words[1:]}, runs_on=False) == of_a_job
    if of_a_job == JOB:
        assert played_command({"name": "a", "command": words}, runs_on=True) == FOR_EVER


async def test_a_played_program_ends_by_itself_or_when_it_is_asked_to() -> None:
    assert await PlayedProgram(PlayedCommand(0.0, 3)).wait() == 3
    program = PlayedProgram(FOR_EVER)
    await program.stop(30.0)
    assert await program.wait() == 143
