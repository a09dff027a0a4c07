// Rulka's side of the link in the game: a plugin for TMInterface 2 (AngelScript).
//
// Listens on 127.0.0.1 at the port in the variable `custom_port` and speaks the protocol of rulka/game/protocol.py,
// where ids and payloads are explained. A test compares this file's ids and payloads with that table.
//
// The rule throughout: the plugin writes a sync (ids 1 to 5), then reads and handles messages until the same id comes
// back; at any other time it reads nothing. Callbacks of the game during a sync, as within a rewind, send nothing.
//
// This file was run in AngelScript's engine, not in the game: see docs/game.md.

const string LOOPBACK = "127.0.0.1";
const uint DEFAULT_TIMEOUT_MS = 2000;
const int DEFAULT_PERIOD_MS = 10;
const int MOST_STATE_BYTES = 115016;
const int MOST_COMMAND_BYTES = 65536;
const int MOST_FRAME_SIDE = 4096;
const uint SILENCE_MS = 100; // after this much silence, another program may replace the one that holds the game
const uint ACCEPT_MS = 10; // wait for another program per poll, so that a held game uses little CPU time
const uint RETRY_MS = 1000; // pause before retrying a taken port
const int LINK_VERSION = 1;
const string VERSION_COMMAND = "rulka_version";
const string VERSION_MARK = "# rulka link ";

enum Id {
    None = -1,
    RunStep = 1,
    CheckpointCount = 2,
    LapCount = 3,
    Frame = 4,
    OnConnect = 5,
    SetSpeed = 6,
    RewindToState = 7,
    RewindToCurrent = 8,
    GetState = 9,
    SetInputs = 10,
    GiveUp = 11,
    PreventFinish = 12,
    Shutdown = 13,
    ConsoleCommand = 14,
    SetTimeout = 15,
    IsFinished = 16,
    RequestFrame = 17,
    ResetCamera = 18,
    SetStepPeriod = 19,
    CancelFrame = 20,
    ShowInterface = 21,
    IsInMenus = 22,
    GetInputs = 23
}

// The socket on which programs connect.
Net::Socket@ listener = null;
int listenerPort = 0;
uint64 nextTryMs = 0;

// State of one program's connection, reset when it is dropped.
Net::Socket@ program = null;
uint timeoutMs = DEFAULT_TIMEOUT_MS;
int frameWidth = 0;
int frameHeight = 0;
bool greetingDue = false;
bool saysVersion = false;
bool saidNoFrame = false;

// State that outlives the connection.
int periodMs = DEFAULT_PERIOD_MS;
bool isWaiting = false; // in a sync

PluginInfo@ GetPluginInfo()
{
    PluginInfo info;
    info.Name = "Rulka link";
    info.Author = "Rulka";
    info.Version = "1";
    info.Description = "Lets a program drive: run steps, states, frames and inputs over a socket of this machine.";
    return info;
}

void Main()
{
    RegisterVariable("custom_port", 0);
}

void OnDisabled()
{
    Forget("the plugin is disabled");
    @listener = null;
    listenerPort = 0;
}

// Called between two frames, outside any sync: accepts programs and sends frames.
void Render()
{
    isWaiting = false; // also after an error in a callback
    Listen();
    Accept();
    if (program !is null && frameWidth > 0 && frameHeight > 0) {
        SendFrame();
    }
}

// The port is set on the game's command line, which runs some time after plugins are loaded, or on its console at any
// time; until then the variable may hold the port of an earlier session.
void Listen()
{
    const int port = int(GetVariableDouble("custom_port"));
    if (port == listenerPort && (listener !is null || port <= 0 || Time::Now < nextTryMs)) {
        return;
    }
    const bool isNew = port != listenerPort;
    listenerPort = port;
    @listener = null;
    if (port <= 0) {
        return;
    }
    auto@ fresh = Net::Socket();
    if (port < 65536 && fresh.Listen(LOOPBACK, uint16(port))) {
        @listener = fresh;
        log("Rulka: listening on port " + port);
    } else {
        nextTryMs = Time::Now + RETRY_MS;
        if (isNew) {
            log("Rulka: port " + port + " cannot be listened on; it is tried again every second");
        }
    }
}

// Accepts a new program, which replaces the current one.
void TakeNewcomer(uint waitMs)
{
    if (listener is null) {
        return;
    }
    auto@ newcomer = listener.Accept(waitMs);
    if (newcomer !is null) {
        Forget("another program connected");
        @program = newcomer;
        program.NoDelay = true;
        greetingDue = true;
        log("Rulka: a program connected");
    }
}

void Accept()
{
    TakeNewcomer(0);
    if (greetingDue && GetCurrentGameState() != TM::GameState::StartUp) {
        greetingDue = false;
        program.Write(int(Id::OnConnect));
        WaitForEcho(Id::OnConnect);
    }
}

// Forgets the request only after the echo, along with any made meanwhile. A failed screenshot is retried at the next
// Render.
void SendFrame()
{
    const auto@ pixels = Graphics::CaptureScreenshot(vec2(frameWidth, frameHeight));
    if (pixels is null || pixels.Length != uint(4 * frameWidth * frameHeight)) {
        if (!saidNoFrame) {
            log("Rulka: no screenshot of " + frameWidth + " x " + frameHeight + "; it is tried again");
        }
        saidNoFrame = true;
        return;
    }
    saidNoFrame = false;
    program.Write(int(Id::Frame));
    program.Write(pixels);
    WaitForEcho(Id::Frame);
    ForgetFrame();
}

void OnRunStep(SimulationManager@ race)
{
    if (program is null || greetingDue || isWaiting) {
        return;
    }
    if (race.RaceTime % periodMs == 0 || race.TickTime > race.RaceTime) {
        program.Write(int(Id::RunStep));
        program.Write(int(race.RaceTime));
        WaitForEcho(Id::RunStep);
    }
}

void OnCheckpointCountChanged(SimulationManager@ race, int current, int target)
{
    SendCount(Id::CheckpointCount, current, target);
}

void OnLapCountChanged(SimulationManager@ race, int current, int target)
{
    SendCount(Id::LapCount, current, target);
}

void SendCount(int id, int current, int target)
{
    if (program is null || greetingDue || isWaiting) {
        return;
    }
    program.Write(id);
    program.Write(current);
    program.Write(target);
    WaitForEcho(id);
}

// The game stands still in here. The timeout counts from the start, and is checked only while nothing can be read.
void WaitForEcho(int id)
{
    isWaiting = true;
    const auto@ held = program;
    const auto startMs = Time::Now;
    auto heardMs = startMs;
    while (program !is null && program is held) {
        const int received = HandleNext();
        if (received == id) {
            break;
        }
        const auto nowMs = Time::Now;
        if (received != Id::None) {
            heardMs = nowMs;
        } else if (nowMs - startMs > timeoutMs) {
            Forget("no echo within " + timeoutMs + " ms");
        } else if (nowMs - heardMs > SILENCE_MS) {
            TakeNewcomer(ACCEPT_MS);
        }
    }
    isWaiting = false;
}

void Forget(const string&in reason)
{
    if (program !is null) {
        log("Rulka: the program is dropped: " + reason);
    }
    @program = null;
    timeoutMs = DEFAULT_TIMEOUT_MS;
    greetingDue = false;
    saysVersion = false;
    saidNoFrame = false;
    ForgetFrame();
}

void ForgetFrame()
{
    frameWidth = 0;
    frameHeight = 0;
}

// Reads and handles one message; returns its id, or None if there is nothing to read.
int HandleNext()
{
    if (program.Available == 0) {
        return Id::None;
    }
    auto@ race = GetSimulationManager();
    const int id = program.ReadInt32();
    switch (id) {
        case Id::RunStep:
        case Id::CheckpointCount:
        case Id::LapCount:
        case Id::Frame:
        case Id::OnConnect:
            break; // an echo
        case Id::SetSpeed:
            race.SetSpeed(program.ReadFloat());
            break;
        case Id::RewindToState:
            Rewind(race);
            break;
        case Id::RewindToCurrent:
            RewindToCurrent(race);
            break;
        case Id::GetState:
            SendState(race);
            break;
        case Id::SetInputs:
            SetKeys(race);
            break;
        case Id::GiveUp:
            if (race.InRace) {
                race.GiveUp();
            }
            break;
        case Id::PreventFinish:
            if (race.InRace) {
                race.PreventSimulationFinish();
            }
            break;
        case Id::Shutdown:
            Forget("it said so");
            break;
        case Id::ConsoleCommand:
            Execute();
            break;
        case Id::SetTimeout:
            timeoutMs = program.ReadUint32();
            break;
        case Id::IsFinished:
            SendFlag(IsFinished(race));
            break;
        case Id::RequestFrame:
            RequestFrame();
            break;
        case Id::ResetCamera:
            race.ResetCamera();
            break;
        case Id::SetStepPeriod:
            SetPeriod(program.ReadInt32());
            break;
        case Id::CancelFrame:
            ForgetFrame();
            break;
        case Id::ShowInterface:
            ToggleRaceInterface(program.ReadInt32() > 0);
            break;
        case Id::IsInMenus:
            SendFlag(GetCurrentGameState() == TM::GameState::Menus);
            break;
        case Id::GetInputs:
            SendInputs(race);
            break;
        default:
            log("Rulka: message " + id + " is unknown; its four bytes are skipped");
    }
    return id;
}

// Checks the length of a message's content; drops the program if it is out of range, since the rest cannot be parsed.
bool IsBelievable(int id, int size, int most)
{
    if (size >= 0 && size <= most) {
        return true;
    }
    Forget("message " + id + " claims " + size + " bytes");
    return false;
}

void Rewind(SimulationManager@ race)
{
    const int size = program.ReadInt32();
    if (!IsBelievable(Id::RewindToState, size, MOST_STATE_BYTES)) {
        return;
    }
    const auto block = program.ReadBytes(size);
    if (race.InRace) {
        SimulationState state(block);
        race.RewindToState(state);
    }
}

void RewindToCurrent(SimulationManager@ race)
{
    auto@ state = race.SaveState();
    if (race.InRace && state !is null) {
        race.RewindToState(state);
    }
}

// Sends a length of 0 if there is no state.
void SendState(SimulationManager@ race)
{
    auto@ state = race.SaveState();
    if (state is null) {
        program.Write(int(0));
        return;
    }
    const auto@ block = state.ToArray();
    program.Write(int(block.Length));
    program.Write(block);
}

void SetKeys(SimulationManager@ race)
{
    const int left = program.ReadUint8() > 0 ? 1 : 0;
    const int right = program.ReadUint8() > 0 ? 1 : 0;
    const int up = program.ReadUint8() > 0 ? 1 : 0;
    const int down = program.ReadUint8() > 0 ? 1 : 0;
    if (race.InRace) {
        race.SetInputState(InputType::Left, left);
        race.SetInputState(InputType::Right, right);
        race.SetInputState(InputType::Up, up);
        race.SetInputState(InputType::Down, down);
    }
}

// Catches the handshake's command here, since the console may run commands only later.
void Execute()
{
    const int size = program.ReadInt32();
    if (!IsBelievable(Id::ConsoleCommand, size, MOST_COMMAND_BYTES)) {
        return;
    }
    const string command = program.ReadString(size);
    if (command == VERSION_COMMAND) {
        saysVersion = true;
    } else {
        ExecuteCommand(command);
    }
}

bool IsFinished(SimulationManager@ race)
{
    auto@ player = race.PlayerInfo;
    return (player !is null && player.RaceFinished) || race.TickTime > race.RaceTime;
}

void RequestFrame()
{
    const int width = program.ReadInt32();
    const int height = program.ReadInt32();
    if (width > 0 && width <= MOST_FRAME_SIDE && height > 0 && height <= MOST_FRAME_SIDE) {
        frameWidth = width;
        frameHeight = height;
    } else {
        log("Rulka: a frame of " + width + " x " + height + " is ignored");
    }
}

void SetPeriod(int period)
{
    if (period > 0) {
        periodMs = period;
    } else {
        log("Rulka: a period of " + period + " ms is ignored");
    }
}

void SendFlag(bool flag)
{
    program.Write(flag ? 1 : 0);
}

void SendInputs(SimulationManager@ race)
{
    string script = "";
    if (race.InRace) {
        auto@ events = race.InputEvents;
        script = events.ToCommandsText();
    }
    if (saysVersion) {
        saysVersion = false;
        script = VERSION_MARK + LINK_VERSION + "\n" + script;
    }
    program.Write(int(script.Length));
    program.Write(script);
}
