"""Network files of cage2: the example, the standard network under other names, the largest network."""

from pathlib import Path

from hundredfold.envs.cage2.network import MAX_HOSTS
from hundredfold.envs.cage2.network_file import STANDARD, STANDARD_FILE

SMALL_NETWORK = str(Path(__file__).parents[2] / "examples" / "small_network.toml")


def renamed_network(folder):
    """The standard network with other names of all hosts and subnets."""
    text = STANDARD_FILE.read_text()
    for name in (*STANDARD.host_names, *STANDARD.subnets):
        text = text.replace(f'"{name}"', f'"site.{name}"')
    path = folder / "renamed.toml"
    path.write_text(text)
    return str(path)


def largest_network(folder):
    """As many hosts and subnets as a network can have: eight subnets, each opened by hosts of the one before."""
    sizes = [MAX_HOSTS - 7 * 7, *[7] * 7]
    names = [[f"h{subnet}_{number}" for number in range(size)] for subnet, size in enumerate(sizes)]
    lines = ['entry = "h0_0"', 'server = "h7_6"', "[b_line]", f"first = {names[0][1:]}", 'relay = "h1_3"']
    for subnet in range(8):
        lines += ["[[subnets]]", f'name = "S{subnet}"']
        if subnet > 1:
            lines.append(f"opened_by = {['h1_3', *names[subnet - 1][:3]]}")
    for subnet, hosts in enumerate(names):
        for number, name in enumerate(hosts):
            lines += ["[[hosts]]", f'name = "{name}"', f'subnet = "S{subnet}"', f"cost = {subnet / 10}"]
            if number % 2:
                lines += ['system = "Windows"', "ports = [445, 139]", 'exploits = { EternalBlue = "user" }']
            else:
                lines += ['system = "Linux"', "ports = [22]", 'exploits = { SSHBruteForce = "user" }']
            if name == "h1_3":
                lines.append('reveals = "h7_6"')
            elif subnet < 7:
                lines.append(f'reveals = "{names[subnet + 1][number % 7]}"')
    path = folder / "largest.toml"
    path.write_text("\n".join([*lines, ""]).replace("'h", '"h').replace("',", '",').replace("']", '"]'))
    return str(path)
