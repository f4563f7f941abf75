-- rate: from when on the rates let a request have its permits.
--
-- Each rate is the generic cell rate algorithm (ITU-T I.371): a bucket that is full again at `tat`, in
-- us of the semaphore's clock. A request says for each rate, in the order of their names, what it costs
-- and how much the bucket holds (the burst): '<cost>/<burst>+...', both as the us in which the rate
-- allows so much. So Redis keeps no configuration. A request goes when the bucket has what it costs,
-- and one that costs more than the burst goes when the bucket is full, and leaves a debt.
--
-- meta     rates      '<tat>:<full>+...', full being when the bucket was last seen to be full
--          rate_told  '<id> <ms> <hub>': which request its hub knows to be the next, and when the rates
--                     let it go; and which other hub looks STAGGER later, in case the first stands still

rated = {}
local STAGGER = 1000  -- ms
local SAMPLE = 20     -- requests that stand for all that wait
local tats, fulls = {}, {}
local head      -- the next request, where only the rates hold it up
local refused   -- one that the rates hold up, and that does not wait
local deputy    -- the other hub that looks

function rated.load_state()
  tats, fulls = {}, {}
  for tat, full in string.gmatch(call('HGET', meta, 'rates') or '', '(%d+):(%d+)') do
    tats[#tats + 1], fulls[#fulls + 1] = tonumber(tat), tonumber(full)
  end
end
-- Notes that bucket *i* is full, if it is.
local function look_into(i)
  if (tats[i] or 0) <= now_us then tats[i], fulls[i] = now_us, now_us end
end

-- When the rates let *request* go, in ms; nil where they do now.
function rated.lets_at(request)
  local at, i = 0, 0
  for cost, burst in string.gmatch(request.costs, '(%d+)/(%d+)') do
    i = i + 1
    at = math.max(at, (tats[i] or 0) - math.max(0, burst - cost))
  end
  return at > now_us and math.ceil(at / 1000) or nil
end
-- *request* is the next one, and goes *at* that time; nil for none.
function rated.next_is(request, at)
  head = at and request
  if at then head.lets_at = at end
end
function rated.refuse(request)
  refused = request
end

-- *request* gets its permits, *sign* being 1, or does not after all, -1.
function rated.spend(request, sign)
  local i = 0
  for cost in string.gmatch(request.costs, '(%d+)/') do
    i = i + 1
    look_into(i)
    tats[i] = tats[i] + sign * cost
  end
end
-- A permit with this *token* cost *more* than its request said, or less, in us of each rate. What it
-- cost less comes back, unless the bucket was full since its grant: it was the bucket's loss then.
function rated.settle(more, token)
  local i = 0
  for text in string.gmatch(more, '-?%d+') do
    i = i + 1
    local by = tonumber(text)
    look_into(i)
    if by > 0 or token >= fulls[i] then tats[i] = math.max(now_us, tats[i] + by) end
  end
end
-- Saves the rates with the counter, for at least *need* ms.
function rated.save(need)
  local texts = {}
  for i, tat in ipairs(tats) do
    texts[i] = exact(tat) .. ':' .. exact(fulls[i])
    need = math.max(need, (tat - now_us) / 1000)
  end
  save_counter(need, 'rates', table.concat(texts, '+'))
end

-- Tells the hub of the next request when it goes, once: that hub alone looks then, and another one
-- later. Returns false where no message reached the hub, which counts as dead.
function rated.tell()
  if not head then return true end
  local told = head.id .. ' ' .. exact(head.lets_at) .. ' '
  local known = call('HGET', meta, 'rate_told') or ''
  if string.sub(known, 1, #told) == told then
    deputy = string.sub(known, #told + 1)
    return true
  end
  deputy = ''
  for _, text in ipairs(call('ZRANGE', queue, 0, SAMPLE - 1)) do
    local owner = string.match(text, '^%x+')
    if deputy == '' and owner ~= head.owner then deputy = owner end
  end
  note('rate_told', told .. deputy)
  local left = head.lets_at - now
  if head.owner ~= hub and not hub_state(head.owner).no_push
      and publish_to(head.owner, 'recheck', exact(left)) == 0 then
    mark_dead(head.owner)
    head = nil
    return false
  end
  if deputy ~= '' and deputy ~= hub then publish_to(deputy, 'recheck', exact(left + STAGGER)) end
  return true
end
-- When the caller's hub has to look, in ms; nil for never.
function rated.look_at()
  if not head then return end
  return head.owner == hub and head.lets_at or deputy == hub and head.lets_at + STAGGER or nil
end
-- In how many ms the last of those that wait, or are refused, goes, by what the first of them cost; -1
-- where the rates hold nobody up.
function rated.backlog()
  if not head and not refused then return -1 end
  local sums, bursts, at = {}, {}, now_us
  local texts = call('ZRANGE', queue, 0, SAMPLE - 1)
  if refused then texts[#texts + 1] = refused.text end
  for _, text in ipairs(texts) do
    local i = 0
    for cost, burst in string.gmatch(parse_request(text).costs, '(%d+)/(%d+)') do
      i = i + 1
      sums[i], bursts[i] = (sums[i] or 0) + cost, burst
    end
  end
  local all = state.waiting + (refused and 1 or 0)
  for i, sum in ipairs(sums) do
    at = math.max(at, (tats[i] or 0) + sum * all / #texts - bursts[i])
  end
  return math.ceil((at - now_us) / 1000)
end
