-- ramp: how many permits may be in use while a back-off runs.
--
-- A back-off is '<ends>:<began>:<step>:<by>': when its pause ends, in ms; the counter when it began;
-- how long a step of the ramp is, in ms; who began it. No permit is granted in the pause. Then the
-- ramp is how many permits may be in use: 1, and with each step twice as many. It does not depend on
-- a limit, because one that is set or declared meanwhile may be higher. After 20 steps it is at a
-- million, and over. The slow start and its doubling are those of TCP (Jacobson, 1988).

-- Returns the ramp of *back_off*, and when it changes: 0 in the pause; math.huge and nil when it is
-- over, or nil was given.
local function ramp_of(back_off)
  if not back_off then return math.huge end
  local ends, step = string.match(back_off, '^(%d+):%d+:(%d+):')
  ends, step = tonumber(ends), tonumber(step)
  if now < ends then return 0, ends end
  local steps = math.floor((now - ends) / step)
  if steps >= 20 then return math.huge end
  return math.floor(2 ^ steps), ends + (steps + 1) * step
end

-- How many permits may be in use for a request under the limit *most*, while *used* are. The first
-- request of a ramp may have more than the ramp, so that a heavy one can start, too.
local function room_in(most, used, ramp)
  return ramp > 0 and used == 0 and most or math.min(most, ramp)
end

-- *most* for a reply: where *back_off* runs, {most, ms until the ramp changes, ramp}.
local function with_back_off(most, back_off)
  local ramp, changes = ramp_of(back_off)
  return changes and { most, changes - now, ramp } or most
end
