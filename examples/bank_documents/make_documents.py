"""Makes the documents, the table of clients and the questions: `python make_documents.py`.

What it made with Faker 40.63 is committed; another version of Faker makes other people.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

from faker import Faker

HERE = Path(__file__).parent
SEED = 2026
CLIENTS = 10
LOCALES = ("de_DE", "fr_FR", "it_IT", "en_GB", "nl_NL")
PREFIXES = {
    "de_DE": "+49 30",
    "fr_FR": "+33 1",
    "it_IT": "+39 06",
    "en_GB": "+44 20",
    "nl_NL": "+31 20",
}
COLUMNS = ("client", "iban", "card", "phone", "id")
MIN_CHARS = 10  # The guard looks for no shorter value.
SHOPS = (
    "Groceries",
    "Rent",
    "Electricity",
    "Salary",
    "Pharmacy",
    "Train ticket",
    "Insurance",
    "Books",
)

Client = dict[str, str]
Document = tuple[list[tuple[str, str]], tuple[str, str, str]]
"""Lines of label and value, and the three labels that are asked for; the last is personal."""


def main() -> None:
    """Write everything beside this file."""
    chance = random.Random(SEED)  # noqa: S311 - the same at each run
    clients = [make_client(number) for number in range(CLIENTS)]
    with (HERE / "clients.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(clients)
    (HERE / "documents").mkdir(exist_ok=True)
    questions = []
    for number, client in enumerate(clients, 1):
        for kind, make in KINDS.items():
            lines, asked = make(client, chance)
            name = f"{kind}-{number:02}"
            text = "".join(f"{label}: {value}\n" for label, value in lines)
            heading = f"Kestrel Savings Bank (fictional)\n{TITLES[kind]}\n\n"
            (HERE / "documents" / f"{name}.txt").write_text(heading + text, encoding="utf-8")
            for label in asked:
                shown = label if label.isupper() else label.lower()
                question = f"What is the {shown}?"
                answer = dict(lines)[label]
                questions.append({"document": name, "question": question, "answer": answer})
    lines_of = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in questions)
    (HERE / "questions.jsonl").write_text(lines_of, encoding="utf-8")


def make_client(number: int) -> Client:
    """A person with valid check digits wherever there are any."""
    locale = LOCALES[number % len(LOCALES)]
    fake = Faker(locale)
    fake.seed_instance(SEED + number)
    name = ""
    while len(name) < MIN_CHARS:
        name = f"{fake.first_name()} {fake.last_name()}"
    return {
        "client": name,
        "iban": in_fours(fake.iban()),
        "card": in_fours(fake.credit_card_number("visa16")),
        "phone": f"{PREFIXES[locale]} {fake.numerify('%###')} {fake.numerify('####')}",
        "id": fake.bothify("??#######?", "CFGHJKLMNPRTVWXYZ"),
    }


def in_fours(text: str) -> str:
    """As banks print it."""
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def amount(value: float) -> str:
    """Euros."""
    return f"{value:.2f} EUR"


def statement(client: Client, chance: random.Random) -> Document:
    """A month of an account; some payments name somebody who is no client."""
    fake = Faker("de_DE")
    fake.seed_instance(chance.randrange(10**6))
    balance = chance.randrange(50_000, 900_000) / 100
    lines = [("Client name", client["client"]), ("IBAN", client["iban"]), ("Card", client["card"])]
    lines += [("Phone", client["phone"]), ("Opening balance", amount(balance))]
    count = chance.randrange(4, 9)
    for day in sorted(chance.sample(range(1, 29), count)):
        paid = chance.randrange(-20_000, 20_000) / 100
        balance += paid
        what = chance.choice(SHOPS)
        if chance.random() < 0.3:
            what = f"Transfer, {in_fours(fake.iban())}"
        lines.append((f"2026-03-{day:02}", f"{what}, {amount(paid)}"))
    lines += [("Closing balance", amount(balance)), ("Number of transactions", str(count))]
    return lines, ("Closing balance", "Number of transactions", "IBAN")


def contract(client: Client, chance: random.Random) -> Document:
    """A loan."""
    lines = [("Client name", client["client"]), ("Identity document", client["id"])]
    lines += [("IBAN", client["iban"]), ("Phone", client["phone"])]
    lines += [("Amount of the loan", amount(chance.randrange(20, 400) * 100))]
    lines += [("Interest rate", f"{chance.randrange(200, 900) / 100:.2f} percent")]
    lines += [("Term", f"{chance.randrange(1, 10) * 12} months")]
    lines += [("First instalment", f"2026-{chance.randrange(5, 13):02}-01")]
    return lines, ("Interest rate", "Term", "Client name")


def kyc(client: Client, chance: random.Random) -> Document:
    """A "know your customer" form."""
    lines = [("Client name", client["client"]), ("Identity document", client["id"])]
    lines += [("Phone", client["phone"]), ("IBAN", client["iban"]), ("Card", client["card"])]
    lines += [("Occupation", chance.choice(("teacher", "nurse", "engineer", "baker", "lawyer")))]
    lines += [("Source of funds", chance.choice(("salary", "pension", "inheritance")))]
    lines += [("Risk rating", chance.choice(("low", "medium", "high")))]
    lines += [("Next review", f"{chance.randrange(2027, 2030)}-{chance.randrange(1, 13):02}-15")]
    return lines, ("Risk rating", "Next review", "Identity document")


TITLES = {"statement": "Account statement", "contract": "Loan contract", "kyc": "KYC form"}
KINDS: dict[str, Callable[[Client, random.Random], Document]] = {
    "statement": statement,
    "contract": contract,
    "kyc": kyc,
}

if __name__ == "__main__":
    main()
